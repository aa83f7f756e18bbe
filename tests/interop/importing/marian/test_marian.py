"""Compare imported Marian models with CTranslate2's converter and Marian's formulas in NumPy, and export them again."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import yaml

from tests.interop.importing import opus
from tests.interop.marian_npz import read_npz, save_for_converter, save_npz
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, DataError, SettingsError, TowerNMTError
from towernmt.dataflow.vocabulary.base import UNK
from towernmt.interop.foreign_model import IMPOSSIBLE_LOGIT, ForeignModel, ImportRequest
from towernmt.interop.foreign_vocabularies import NO_ROW, PieceTable
from towernmt.interop.marian_export import marian_parameters, to_marian
from towernmt.interop.marian_files import NO_PIECE, MarianVocabulary
from towernmt.interop.marian_import import marian_search, read_marian, unsupported_marian_options
from towernmt.interop.marian_model import MarianModel
from towernmt.predict.search.search_settings import SearchSettings

Make = Callable[..., Path]


@pytest.mark.thorough
def test_an_imported_model_scores_and_translates_as_the_original_does_in_ctranslate2(
        imported: Path, original: Path, tmp_path: Path) -> None:
    import ctranslate2
    from ctranslate2.converters import MarianConverter

    from towernmt.predict.scorer import Scorer
    from towernmt.predict.translator import Translator

    with_positions = tmp_path / "with-positions.npz"
    save_for_converter(with_positions, *read_npz(original / "opus.model1.npz"))
    MarianConverter(str(with_positions), [str(original / "opus.vocab.yml")] * 2).convert(str(tmp_path / "ct2"))
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"))
    german, english = (sentencepiece.SentencePieceProcessor(model_file=str(original / f"{side}.spm"))
                       for side in ("source", "target"))
    sources = [german.encode(line, out_type=str) for line in opus.GERMAN]
    expected = theirs.score_batch(sources, [english.encode(line, out_type=str) for line in opus.ENGLISH])
    found = Scorer(imported).score(list(zip(opus.GERMAN, opus.ENGLISH, strict=True)), per_token=True)
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.log_probs, other.log_probs, atol=1e-4)

    longest = 12
    results = theirs.translate_batch(sources, beam_size=4, num_hypotheses=4, patience=2, length_penalty=1e-9,
                                     max_decoding_length=longest, min_decoding_length=0)
    best = [[piece for piece in result.hypotheses[0] if piece != "</s>"] for result in results]
    translator = Translator(imported, 4, length_penalty=0.0, max_length_factor=0.0, max_length_constant=longest,
                            engine="graph")
    assert translator.translate(opus.GERMAN) == [" ".join(english.decode(pieces).split()) for pieces in best]


def test_the_bias_of_unused_pieces_leaves_the_smoothed_loss_small() -> None:
    table = PieceTable(["<pad>", "<unk>", "unused", "word", "unknown"], np.array([NO_ROW, 0, 1, 2, 0]), known=4)
    bias = table.reorder_bias(np.array([0.5, -1e9, -2.0], np.float32))
    expected = [IMPOSSIBLE_LOGIT, 0.5, IMPOSSIBLE_LOGIT, -2.0, np.float32(0.5 + IMPOSSIBLE_LOGIT)]
    np.testing.assert_array_equal(bias, expected)


def test_the_run_has_what_came_with_the_model_and_searches_as_its_decoder_did(imported: Path) -> None:
    assert sorted(file.name for file in (imported / "imported").iterdir()) == ["LICENSE", "README.md", "decoder.yml"]
    settings = yaml.safe_load((imported / "settings.yaml").read_text())
    assert settings["search"]["beam_size"] == 6
    assert (settings["search"]["length_normalization"], settings["search"]["length_penalty"]) == ("average", 1.0)
    assert settings["made_from"]["imported"] == "marian opus.model1.npz"
    assert (settings["model"]["guided_alignment_layer"], settings["model"]["guided_alignment_heads"]) == (1, 1)


@pytest.mark.parametrize(("options", "tie"), [
    ({}, "all"), ({"transformer-ffn-activation": "gelu"}, "target"),
    ({"transformer-ffn-activation": "relu", "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}, "none")])
def test_what_is_imported_is_exported_as_a_model_of_the_same_logits(
        make_opus: Make, options: dict[str, Any], tie: str) -> None:
    path = make_opus(options=options, tie=tie)
    model = read_marian(ImportRequest(path))
    assert model.settings.tie_embeddings == tie
    first = MarianModel(*read_npz(path / "opus.model1.npz"))
    source, target = (MarianVocabulary.of(one) for one in (model.source, model.target))
    back = MarianModel(marian_parameters(model.settings, model.weights, source, target), first._options)
    ids = [model.source.encode(opus.GERMAN[0]), model.target.encode(opus.ENGLISH[0])]
    pieces = [[vocabulary.id_to_piece(id) for id in some]
              for vocabulary, some in zip((model.source, model.target), ids, strict=True)]
    numbers = opus.read_numbers(path / "opus.vocab.yml")
    theirs = first.logits(*([numbers.get(piece, 1) for piece in side] + [0] for side in pieces))
    ours = back.logits(*(to_marian(some, one) for some, one in zip(ids, (source, target), strict=True)))
    known = [(row, numbers[model.target.id_to_piece(id)]) for row, id in enumerate(target.towernmt_ids)
             if id != NO_PIECE and model.target.id_to_piece(id) in numbers]
    np.testing.assert_allclose(ours[:, [row for row, _ in known]], theirs[:, [row for _, row in known]], rtol=1e-4,
                               atol=1e-4)
    assert (np.delete(ours, [row for row, _ in known], 1) < -500).all()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_text_is_divided_as_before_and_pieces_keep_the_rows_of_their_numbers(make_opus: Make, kind: str) -> None:
    path = make_opus(kind=kind, further=(">>fra<<", "nobody"), missing=3)
    model = read_marian(ImportRequest(path))
    numbers = opus.read_numbers(path / "opus.vocab.yml")
    parameters, _ = read_npz(path / "opus.model1.npz")
    table = model.weights["transformer/embedding"]
    for vocabulary, side, lines in ((model.source, "source", opus.GERMAN), (model.target, "target", opus.ENGLISH)):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path / f"{side}.spm"))
        for line in lines:
            pieces = processor.encode(line, out_type=str)
            ids = vocabulary.encode(line)
            if side == "source":
                assert [vocabulary.id_to_piece(id) for id in ids] == pieces
                np.testing.assert_array_equal(table[ids], parameters["Wemb"][[numbers.get(p, 1) for p in pieces]])
            assert UNK not in ids and vocabulary.decode(ids) == line
    ids = model.source.encode(">>fra<< das haus")
    np.testing.assert_array_equal(table[ids[0]], parameters["Wemb"][numbers[">>fra<<"]])
    assert model.source.encode("das haus") == ids[1:]


def test_one_spm_file_gives_both_the_pieces_and_their_numbers(make_opus: Make, tmp_path: Path) -> None:
    path = make_opus()
    (path / "decoder.yml").unlink()
    vocabulary = tmp_path / "vocab.spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(opus.GERMAN * 5), model_prefix=str(tmp_path / "vocab"), vocab_size=40, eos_id=0,
        unk_id=1, bos_id=-1, pad_id=-1, hard_vocab_limit=False, minloglevel=2)
    (tmp_path / "vocab.model").rename(vocabulary)
    for file in path.glob("*.spm"):
        file.unlink()
    model = read_marian(ImportRequest(path / "opus.model1.npz", (vocabulary, vocabulary)))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    parameters, _ = read_npz(path / "opus.model1.npz")
    ids = model.source.encode(opus.GERMAN[0])
    np.testing.assert_array_equal(model.weights["transformer/embedding"][ids],
                                  parameters["Wemb"][processor.encode(opus.GERMAN[0])])
    assert model.source.files() == model.target.files()


def test_a_vocabulary_without_a_model_beside_it_is_one_of_words(make_opus: Make) -> None:
    path = make_opus()
    for file in path.glob("*.spm"):
        file.unlink()
    model = read_marian(ImportRequest(path))
    assert model.source.kind == "word" and model.notes
    piece = model.source.id_to_piece(10)
    assert model.source.encode(f"{piece} {piece}") == [10, 10]


@pytest.mark.parametrize(("changed", "named"), [
    ({"type": "s2s"}, "type is s2s"), ({"type": "nematus"}, "type is nematus"),
    ({"transformer-decoder-autoreg": "average-attention"}, "average-attention"),
    ({"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"}, "dec-cell is gru"),
    ({"transformer-preprocess": "n", "transformer-postprocess": "da"}, "transformer-preprocess is 'n'"),
    ({"transformer-postprocess": "dahn"}, "transformer-postprocess 'dahn'"),
    ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb"),
    ({"transformer-postprocess-top": "n"}, "transformer-postprocess-top"),
    ({"transformer-ffn-activation": "tanh"}, "transformer-ffn-activation is tanh"),
    ({"transformer-ffn-depth": 3}, "transformer-ffn-depth"),
    ({"transformer-decoder-dim-ffn": 7}, "transformer-decoder-dim-ffn"),
    ({"transformer-no-projection": True}, "transformer-no-projection"),
    ({"transformer-train-positions": True}, "transformer-train-positions"),
    ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers"),
    ({"lemma-dim-emb": 8}, "factors"), ({"ulr": True}, "ulr"), ({"right-left": True}, "right-left"),
    ({"dim-vocabs": [5, 5, 5]}, "dim-vocabs"), ({"dim-vocabs": 5}, "dim-vocabs is 5")])
def test_what_ours_does_not_have_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    fits = {**opus.OPTIONS, "dim-vocabs": [9, 9]}
    assert not unsupported_marian_options(fits)
    assert named in unsupported_marian_options({**fits, **changed})


def broken(path: Path, how: str) -> Path:
    """Damage a model, and return the path to import."""
    file = path / "opus.model1.npz"
    parameters, options = read_npz(file)
    if how == "cut":
        file.write_bytes(file.read_bytes()[:900])
    elif how == "text":
        file.write_text("no archive\n")
    elif how == "one array":
        with file.open("wb") as content:
            np.save(content, parameters["Wemb"])
    elif how == "member":
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("notes", "no array")
    elif how == "pickle":
        np.savez(file, **{"special:model.yml": np.array([{"type": "transformer"}], object)})
    elif how == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(bytes(content))
    elif how == "no options":
        np.savez(file, **parameters)
    elif how == "lacking":
        del parameters["encoder_l1_self_Wq"]
        save_npz(file, parameters, options)
    elif how == "more":
        save_npz(file, {**parameters, "decoder_lex_W": np.zeros([2, 2], np.float32)}, options)
    elif how == "shape":
        save_npz(file, parameters, {**options, "transformer-dim-ffn": 12})
    elif how == "infinite":
        parameters["encoder_l1_ffn_b1"][0, 3] = np.inf
        save_npz(file, parameters, options)
    elif how == "heads":
        save_npz(file, parameters, {**options, "transformer-heads": 3})
    return file if how != "nothing" else path / "nothing.npz"


@pytest.mark.parametrize(("how", "said"), [
    ("cut", "not a Marian model"), ("text", "not a Marian model"), ("pickle", "not a Marian model"),
    ("one array", "one array, not an archive"), ("member", "notes is not an array"),
    ("flipped", "opus.model1.npz"), ("no options", "special:model.yml"), ("lacking", "encoder_l1_self_Wq is missing"),
    ("more", "decoder_lex_W"), ("shape", "[16, 24]"), ("infinite", "encoder_l1_ffn_b1"), ("nothing", "does not exist")])
def test_a_damaged_or_foreign_file_is_one_sentence(make_opus: Make, how: str, said: str) -> None:
    file = broken(make_opus(), how)
    with pytest.raises(TowerNMTError) as caught:
        read_marian(ImportRequest(file))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "said"), [
    ("</s>: 0\n<unk>: 1\na: 3\n", "not numbered"), ("</s>: 0\n<unk>: 1\na: 2\na: 3\n", "damaged"),
    ("[1, 2]\n", "vocabulary"), ("<unk>: 0\n</s>: 1\na: 2\n", "</s> and <unk>"), ("", "damaged")])
def test_a_vocabulary_that_is_not_marians_is_one_sentence(make_opus: Make, content: str, said: str) -> None:
    path = make_opus()
    (path / "opus.vocab.yml").write_text(content)
    with pytest.raises(DataError) as caught:
        read_marian(ImportRequest(path))
    assert said in str(caught.value) and "opus.vocab.yml" in str(caught.value)


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.txt", "</s>\n<unk>\na\nb\na\n", "a piece occurs twice or is empty"),
    ("a.txt", "</s>\n<unk>\n\n", "a piece occurs twice or is empty"),
    ("a.json", '{"</s>": 0, "<unk>": 1e999}', "each line must have a piece, a colon and a number"),
    ("a.yml", None, "cannot read the file (No such file"), ("a.spm", None, "cannot read the file (No such file")])
def test_a_named_vocabulary_that_cannot_be_used_is_one_sentence(
        make_opus: Make, tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_marian(ImportRequest(make_opus(), (tmp_path / name, tmp_path / name)))
    assert said in str(caught.value) and str(tmp_path / name) in str(caught.value)


def test_a_sentencepiece_model_with_a_damaged_piece_is_one_sentence(make_opus: Make) -> None:
    path = make_opus()
    content, piece = (path / "source.spm").read_bytes(), "▁haus".encode()
    assert content.count(piece) == 1
    (path / "source.spm").write_bytes(content.replace(piece, b"\x80" + piece[1:]))
    with pytest.raises(DataError, match="source.spm: a piece of this SentencePiece model is not UTF-8"):
        read_marian(ImportRequest(path))


def test_pieces_of_a_vocabulary_may_be_written_in_all_ways_of_yaml(make_opus: Make) -> None:
    path = make_opus()
    numbers = opus.read_numbers(path / "opus.vocab.yml")
    words = list(numbers)[2:8]
    odd = dict(zip(words, ['"\\""', "'it''s'", "null", "? a long one", '"\\x85"', '":"'], strict=True))
    lines = []
    for piece, number in numbers.items():
        written = odd.get(piece, json.dumps(piece, ensure_ascii=False))
        lines.append(f"{written}\n: {number}" if written.startswith("? ") else f"{written}: {number}")
    (path / "opus.vocab.yml").write_text("\n".join(lines) + "\n")
    pieces = read_marian(ImportRequest(path)).source
    assert [pieces.id_to_piece(id) for id in range(4, 10)] == ['"', "it's", "null", "a long one", "\x85", ":"]


def test_a_folder_must_say_which_file_is_the_model(make_opus: Make) -> None:
    path = make_opus()
    (path / "decoder.yml").unlink()
    (path / "other.npz").write_bytes((path / "opus.model1.npz").read_bytes())
    with pytest.raises(SettingsError, match="contains 2 .npz files, and no decoder.yml that names one of them"):
        read_marian(ImportRequest(path))
    assert isinstance(read_marian(ImportRequest(path / "other.npz")), ForeignModel)
    (path / "decoder.yml").write_text("models: [opus.model1.npz, other.npz]\n")
    with pytest.raises(SettingsError, match=r"name 2 models \(opus.model1.npz, other.npz\), an ensemble, and a run"):
        read_marian(ImportRequest(path))
    (path / "folder.bin").mkdir()
    (path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="binary format"):
        read_marian(ImportRequest(path / "model.bin"))


def test_search_settings_follow_the_decoders() -> None:
    found, notes = marian_search({"beam-size": 6, "normalize": 0.6, "word-penalty": -0.5, "max-length-factor": 2})
    assert (found.beam_size, found.length_penalty, found.word_reward, found.max_length_factor) == (6, 0.6, 0.5, 2.0)
    assert notes == ()


def test_missing_search_settings_are_marians_if_the_decoder_has_options() -> None:
    found, notes = marian_search({"vocabs": ["vocab.yml"]})
    assert (found.beam_size, found.length_penalty, found.word_reward, notes) == (12, 0.0, 0.0, ())
    assert (found.max_length_factor, found.max_length_constant) == (3.0, 0)
    assert marian_search({}) == (SearchSettings(), ())


@pytest.mark.parametrize(("option", "value", "reason"), [
    ("word-penalty", 0.5, "search.word_reward, its opposite, must be a number of at least 0: it searches with word-"),
    ("normalize", -1, "search.length_penalty must be a number of at least 0: it searches with normalize=0."),
    ("beam-size", 2.5, "search.beam_size must be an integer of at least 1: it searches with beam-size=12.")])
def test_an_option_of_the_search_that_a_run_cannot_contain_is_reported(
        make_opus: Make, option: str, value: float, reason: str) -> None:
    path = make_opus()
    decoder = yaml.safe_load((path / "decoder.yml").read_text())
    (path / "decoder.yml").write_text(yaml.safe_dump({**decoder, option: value}))
    (note,) = read_marian(ImportRequest(path)).notes
    assert note.startswith(f"The run does not contain {option}={value} of decoder.yml, because {reason}")


def test_an_import_that_fails_leaves_nothing(
        make_opus: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", str(tmp_path / "run")]
    assert main(["import", str(broken(make_opus(), "heads")), "--from", "marian", *output]) == 1
    assert "heads" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert main(["import", str(tmp_path / "other"), "--from", "moses", *output]) == 1
    assert "marian" in capsys.readouterr().err


@pytest.mark.thorough
def test_an_imported_run_is_tuned_averaged_exported_and_says_the_same_before(
        imported: Path, original: Path, tmp_path: Path) -> None:
    for name, lines in (("train.de", opus.GERMAN), ("train.en", opus.ENGLISH)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 4))
    text = [str(tmp_path / "train.de"), str(tmp_path / "train.en")]
    assert main(["prepare", "--source", text[0], "--target", text[1], "--source-vocab",
                 str(imported / "vocabulary/source.model"), "--target-vocab", str(imported / "vocabulary/target.model"),
                 "--output", str(tmp_path / "data")]) == 0
    tuned = tmp_path / "tuned"
    assert main(["train", "--defaults=fixed", "--data", str(tmp_path / "data"), "--logdir", str(tuned), "--config",
                 str(imported / "settings.yaml"), "--set", f"init.checkpoint={imported}", "train.steps=2",
                 "checkpoint.steps=1", "validation.steps=0", "data.batch_tokens=200"]) == 0
    assert yaml.safe_load((tuned / "settings.yaml").read_text())["model"]["tie_embeddings"] == "all"
    assert main(["average", "--model", str(tuned), "--last", "2"]) == 0
    for kind in ("marian", "ctranslate2"):
        assert main(["export", "--model", str(imported), "--format", kind, "--output", str(tmp_path / kind)]) == 0
    back = MarianModel(*read_npz(tmp_path / "marian/model.npz"))
    first = MarianModel(*read_npz(original / "opus.model1.npz"))
    numbers = opus.read_numbers(original / "opus.vocab.yml")
    theirs = opus.read_numbers(tmp_path / "marian/trgvocab.yml")
    greedy = [(model.greedy([ids.get(piece, 1) for piece in ("▁haus", "▁der")] + [0], 8), ids)
              for model, ids in ((first, numbers), (back, theirs))]
    texts = [[next(piece for piece, id in ids.items() if id == found) for found in some] for some, ids in greedy]
    assert texts[0] == texts[1]
