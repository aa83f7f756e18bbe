"""Compare exports for Marian with the TensorFlow graph, and read them with independent readers of Marian's files."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece
import yaml
from tensorpack.tfutils.tower import PredictTowerContext

from tests.interop.marian_npz import read_npz, save_for_converter
from tests.variables import assign_random
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.interop.export import export_model
from towernmt.interop.marian_export import to_marian, unsupported_by_marian
from towernmt.interop.marian_files import NO_PIECE, MarianVocabulary, float_value, int8_items
from towernmt.interop.marian_model import MarianModel
from towernmt.models.interface import shift_right
from towernmt.models.model_settings import TRANSFORMER_PRESETS, TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.search_settings import SearchSettings

STUDENT: dict[str, Any] = {
    "hidden_size": 64, "filter_size": 128, "heads": 4, "encoder_layers": 1, "decoder_layers": 2, "decoder_cell": "ssru",
    "preprocess": "", "postprocess": "drn", "start": "zero"}
SENTENCES = ["the cat sat on the mat", "a dog saw the cat", "the dog sat", "a mat is on a dog", "cats see dogs"]
SOURCE, TARGET = [7, 9, 12, 5, 2], [8, 6, 15, 2]
"""Token ids of towernmt, with EOS."""
VOCABULARY = learn_sentence_piece(SENTENCES, "unigram", 30)


class Trained:
    """A replacement for `TrainedModel`, with random weights."""

    def __init__(self, run: Path, vocabulary: Vocabulary, **settings: Any) -> None:
        size = {"source_vocab_size": vocabulary.size, "target_vocab_size": vocabulary.size}
        self.model = Transformer(TransformerSettings(**{**STUDENT, **size, **settings}))
        self.source_vocabulary = self.target_vocabulary = vocabulary
        self.run = SimpleNamespace(architecture=lambda: "transformer", vocabulary=run, saved_settings=dict,
                                   source_prefix="")
        self.checkpoint, self.uses_averages = str(run / "step-7" / "model"), True

    @property
    def logits(self) -> np.ndarray:
        return our_graph(json.dumps(asdict(self.model.settings)))[0]

    def weights(self) -> dict[str, np.ndarray]:
        return our_graph(json.dumps(asdict(self.model.settings)))[1]


@cache
def our_graph(settings: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the logits of the TensorFlow graph for `SOURCE` and `TARGET`, and its random weights."""
    model, random = Transformer(TransformerSettings(**json.loads(settings))), np.random.default_rng(3)
    with tf.Graph().as_default(), PredictTowerContext(""):
        memory = model.encode(tf.constant([SOURCE]), tf.constant([len(SOURCE)]))
        logits = model.decode(memory, shift_right(tf.constant([TARGET])))
        with tf1.Session() as session:
            values = assign_random(session, random, 0.3)
            return session.run(logits)[0], values


@pytest.fixture
def make_trained(tmp_path: Path) -> Any:
    """A function that makes a model from settings."""
    run = tmp_path / "run"
    run.mkdir()
    return lambda vocabulary=VOCABULARY, **settings: Trained(run, vocabulary, **settings)


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    file = tmp_path / "some.text"
    file.write_text("\n".join(SENTENCES) + "\n")
    return file


def in_marians_order(logits: np.ndarray) -> np.ndarray:
    return logits[:, [2, 3, *range(4, logits.shape[1])]]


@pytest.mark.parametrize("settings", [
    {}, {"decoder_cell": "attention", "tie_embeddings": "none", "lhuc": True, "initialization": "deepnorm"},
    pytest.param({"lhuc": True, "tie_embeddings": "target"}, marks=pytest.mark.slow),
    pytest.param({"decoder_cell": "attention", "attention_biases": True, "feed_forward": "gelu_sigmoid", "lhuc": True},
                 marks=pytest.mark.thorough),
    pytest.param({"attention_biases": True, "feed_forward": "swish"}, marks=pytest.mark.thorough)])
def test_marians_formulas_give_our_logits_from_the_npz(make_trained, tmp_path, settings):
    trained = make_trained(**settings)
    path = export_model(trained, "marian", tmp_path / "out", search=SearchSettings())
    model = MarianModel(*read_npz(path / "model.npz"))
    source, target = (to_marian(ids[:-1], MarianVocabulary.of(VOCABULARY)) for ids in (SOURCE, TARGET))
    logits, expected = model.logits(source, target), in_marians_order(trained.logits)
    np.testing.assert_allclose(logits[:, :expected.shape[1]], expected, rtol=1e-3, atol=2e-4)
    assert (logits[:, expected.shape[1]:] < -1e8).all()
    decoder = yaml.safe_load((path / "decoder.yml").read_text())
    assert decoder["models"] == ["model.npz"] and decoder["vocabs"] == ["vocab.spm"] * 2


def test_ctranslate2_reads_the_npz_and_gives_our_probabilities(make_trained, tmp_path):
    converters = pytest.importorskip("ctranslate2.converters")
    import ctranslate2

    trained = make_trained(decoder_cell="attention", decoder_layers=1)
    path = export_model(trained, "marian", tmp_path / "out", search=SearchSettings())
    parameters, options = read_npz(path / "model.npz")
    save_for_converter(path / "model.npz", parameters, {**options, "transformer-guided-alignment-layer": "last"})
    converter = converters.MarianConverter(str(path / "model.npz"), [str(path / "vocab.yml")] * 2)
    converter.convert(str(tmp_path / "ct2"))
    pieces = [[VOCABULARY.id_to_piece(id) for id in ids[:-1]] for ids in (SOURCE, TARGET)]
    scored = ctranslate2.Translator(str(tmp_path / "ct2")).score_batch([pieces[0]], [pieces[1]])[0].log_probs
    logits = in_marians_order(trained.logits)
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = log_probs[range(len(TARGET)), [id - 2 for id in TARGET]]
    np.testing.assert_allclose(scored, expected, rtol=1e-3, atol=1e-3)


def read_binary(content: bytes) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Return type, shape and data of each item in a binary file of Marian."""
    version, count = struct.unpack_from("<QQ", content)
    assert version == 1
    headers = [struct.unpack_from("<QQQQ", content, 16 + 32 * number) for number in range(count)]
    position, names, shapes, items = 16 + 32 * count, [], [], {}
    for length, *_ in headers:
        assert content[position + length - 1] == 0
        names.append(content[position:position + length - 1].decode())
        position += length
    for _, _, dimensions, _ in headers:
        shapes.append(struct.unpack_from(f"<{dimensions}i", content, position))
        position += 4 * dimensions
    position += 8 + struct.unpack_from("<Q", content, position)[0]
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        assert position % 256 == 0 and size % 256 == 0
        items[name] = kind, shape, content[position:position + size]
        position += size
    assert position == len(content)
    return items


def test_the_8_bit_file_holds_the_model_with_what_each_product_is_scaled_by(make_trained, tmp_path, sentences):
    trained = make_trained()
    path = export_model(trained, "marian", tmp_path / "out", precision="int8", search=SearchSettings(),
                         calibration=sentences)
    export_model(trained, "marian", tmp_path / "whole", search=SearchSettings())
    whole, options = read_npz(tmp_path / "whole/model.npz")
    items = read_binary((path / "model.intgemm.alphas.bin").read_bytes())
    kind, shape, data = items.pop("special:model.yml")
    assert kind == 0x101 and yaml.safe_load(data[:shape[0] - 1]) == options and data[shape[0] - 1] == 0
    back, steps = {}, {}
    for name, (kind, shape, data) in items.items():
        elements = int(np.prod(shape))
        if kind == 0x404:
            back[name] = np.frombuffer(data, "<f4", elements).reshape(shape)
            continue
        assert kind == 0x4101
        multiplier = np.frombuffer(data, "<f4", 1, elements)[0]
        values = np.frombuffer(data, np.int8, elements) / multiplier
        back[name] = values.reshape(shape) if name == "Wemb" else values.reshape(shape[::-1]).T
        steps[name] = 1 / multiplier
    alphas = {name.removesuffix("_QuantMultA"): float(back.pop(name)[0, 0])
              for name in list(back) if name.endswith("_QuantMultA")}
    assert set(back) == set(whole) and len(steps) == 1 + 6 + 2 * (2 + 4 + 2)
    for name, value in back.items():
        np.testing.assert_allclose(value, whole[name], rtol=0, atol=steps.get(name, 0) * 0.5001)
    assert set(alphas) == {*steps, "none"}
    assert alphas["none"] == alphas["Wemb"] and all(0 < alpha < 1e4 for alpha in alphas.values())
    model = MarianModel(whole, options)
    for text in SENTENCES:
        ids = VOCABULARY.encode(text)
        model.greedy(to_marian(ids, MarianVocabulary.of(VOCABULARY)), 2 * (len(ids) + 1) + 10)
    largest = model.largest_inputs["decoder_l2_context_Wq"]
    assert alphas["decoder_l2_context_Wq"] == pytest.approx(127 / max(largest), rel=1e-5)
    told = json.loads((path / "towernmt.json").read_text())
    assert (told["model"], told["vocabularies"]) == ("model.intgemm.alphas.bin", ["vocab.spm", "vocab.spm"])


def test_each_product_has_a_scale_if_translations_may_have_no_tokens(make_trained, tmp_path, sentences):
    path = export_model(make_trained(), "marian", tmp_path / "out", precision="int8", calibration=sentences,
                         search=SearchSettings(max_length_factor=0.0, max_length_constant=0))
    items = read_binary((path / "model.intgemm.alphas.bin").read_bytes())
    matrices = {name for name, (kind, _, _) in items.items() if kind == 0x4101}
    assert {f"{name}_QuantMultA" for name in matrices} < set(items)


def test_zeros_are_written_in_8_bits_and_read_back():
    """Inputs are zeros if the activations of a layer are never positive."""
    parameters = {"decoder_Wemb": np.ones([2, 4], np.float32), "encoder_l1_ffn_W2": np.zeros([4, 2], np.float32)}
    items = {item.name: item for item in int8_items(parameters, {"encoder_l1_ffn_W2": 0.0}, "type: transformer\n")}
    np.testing.assert_array_equal(float_value(items["encoder_l1_ffn_W2"]), np.zeros([4, 2]))
    assert np.frombuffer(items["encoder_l1_ffn_W2_QuantMultA"].data, "<f4").tolist() == [1.0]


@pytest.mark.parametrize("kind", ["unigram", pytest.param("bpe", marks=pytest.mark.thorough)])
def test_the_sentencepiece_model_has_marians_ids_and_cuts_as_ours(make_trained, tmp_path, kind):
    vocabulary = learn_sentence_piece(SENTENCES, kind, 31)
    path = export_model(make_trained(vocabulary), "marian", tmp_path / "out", search=SearchSettings())
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path / "vocab.spm"))
    ordered = MarianVocabulary.of(vocabulary)
    assert (theirs.eos_id(), theirs.unk_id()) == (0, 1) and theirs.get_piece_size() % 8 == 0
    assert [theirs.id_to_piece(id) for id in range(theirs.get_piece_size())] == ordered.pieces
    assert list(ordered.towernmt_ids).count(NO_PIECE) == theirs.get_piece_size() - vocabulary.size + 2
    for text in [*SENTENCES, "the zebra <s> sat"]:
        ids = theirs.encode(text)
        assert [*ids, 0] == to_marian(vocabulary.encode(text), ordered)
    for text in SENTENCES:
        assert theirs.decode(theirs.encode(text)) == text
    lines = (path / "vocab.yml").read_text().splitlines()
    assert lines[:2] == ['"</s>": 0', '"<unk>": 1'] and len(lines) == theirs.get_piece_size()


def test_a_shortlist_holds_likely_translations_and_frequent_pieces_under_its_checksum(make_trained, tmp_path):
    size = VOCABULARY.size
    frequency = np.zeros(size)
    frequency[[9, 10]] = 5, 7
    entries = Entries(np.array([6, 6, 7]), np.array([11, 8, 13]), np.array([0.7, 0.3, 1.0]), frequency)
    Lexicon.of(entries, VOCABULARY, VOCABULARY).save(tmp_path / "lexicon")
    search = SearchSettings(shortlist=str(tmp_path / "lexicon"), shortlist_size=2, shortlist_frequent=2)
    path = export_model(make_trained(), "marian", tmp_path / "out", search=search)
    content = (path / "lex.s2t.bin").read_bytes()
    magic, checksum, first, best, count, ids = struct.unpack_from("<6Q", content)
    assert (magic, first, best) == (0xF11A48D5013417F5, 2, 2) and len(content) == 48 + 8 * count + 4 * ids
    seed = 0
    for (word,) in struct.iter_unpack("<Q", content[16:16 + (len(content) - 16) // 8 * 8]):
        seed = (seed ^ (word + 0x9E3779B9 + (seed << 6) + (seed >> 2))) % 2 ** 64
    assert checksum == seed
    starts = struct.unpack_from(f"<{count}Q", content, 48)
    targets = struct.unpack_from(f"<{ids}I", content, 48 + 8 * count)
    lists = [targets[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    assert lists[0] == (7, 8)                           # </s>: the frequent ones; our ids are greater by two
    assert (lists[4], lists[5]) == ((6, 9), (5, 11))    # the two most probable ones, and the identical piece
    assert lists[1] == () and max(targets) < size


REFUSED = [
    ({"start": "bos"}, "float32", "model.start=bos"),
    ({"preprocess": "n", "postprocess": "dr"}, "float32", "model.preprocess"),
    ({"norm": "rms"}, "float32", "model.norm=rms"), ({"positions": "rotary"}, "float32", "model.positions=rotary"),
    ({"feed_forward": "swiglu"}, "float32", "model.feed_forward=swiglu"),
    ({"source_factor_vocab_sizes": [5]}, "float32", "model.source_factors"),
    ({"hidden_size": 2, "heads": 1}, "float32", "model.hidden_size=2"),
    ({"hidden_size": 96}, "int8", "model.hidden_size=96"), ({"filter_size": 100}, "int8", "model.filter_size=100"),
    ({"tie_embeddings": "none"}, "int8", "model.tie_embeddings=none"),
    ({"decoder_cell": "attention"}, "int8", "model.decoder_cell=attention")]


@pytest.mark.parametrize("settings, precision, named", REFUSED)
def test_what_marian_cannot_express_is_refused_by_its_setting(settings, precision, named):
    assert named in unsupported_by_marian(TransformerSettings(**{**STUDENT, **settings}), precision)


def test_the_student_fits_in_both_precisions_and_tiny_in_none():
    student, tiny = TransformerSettings(**TRANSFORMER_PRESETS["student"]), TransformerSettings()
    assert not any(unsupported_by_marian(student, precision) for precision in ("float32", "int8"))
    assert unsupported_by_marian(tiny, "float32")


def test_int8_asks_for_sentences_and_for_sentencepiece(make_trained, tmp_path, sentences):
    words = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", *"abcdefghijklmnop"])
    options: dict[str, Any] = {"precision": "int8", "search": SearchSettings()}
    with pytest.raises(SettingsError, match="kind of vocabulary"):
        export_model(make_trained(words), "marian", tmp_path / "out", calibration=sentences, **options)
    trained = make_trained()
    with pytest.raises(SettingsError, match="--calibration"):
        export_model(trained, "marian", tmp_path / "out", **options)
    with pytest.raises(DataError, match="nowhere"):
        export_model(trained, "marian", tmp_path / "out", calibration=tmp_path / "nowhere", **options)
    sentences.write_text("\n \n")
    with pytest.raises(DataError, match="no sentence"):
        export_model(trained, "marian", tmp_path / "out", calibration=sentences, **options)
    trained.model = object()
    with pytest.raises(SettingsError, match="architecture="):
        export_model(trained, "marian", tmp_path / "out", search=SearchSettings())
    assert not (tmp_path / "out").exists()
