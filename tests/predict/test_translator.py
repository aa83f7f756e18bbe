"""The translator with a checkpoint on disk and the real Transformer, tiny and untrained."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.predict import OfflinePredictor, PredictConfig
from tensorpack.tfutils.tower import PredictTowerContext

from tests.variables import assign_random
from tests.waiting import PATIENCE
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import CheckpointError, DataError, SettingsError, TowerNMTError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.models.interface import shift_right
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.predict import engine_choice
from towernmt.predict import translator as translator_module
from towernmt.predict.lines.faults import retry_settings, worse
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.minimum_bayes_risk import MinimumBayesRisk
from towernmt.predict.search.decoding_interfaces import LogitsProcessor
from towernmt.predict.search.decoding_tower import search_signature, search_tower
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.search.step_context import StepContext
from towernmt.predict.trained_model import TrainedModel, make_predictor
from towernmt.predict.translator import Translator, translation_config

WORDS = [f"w{i}" for i in range(16)]


def make_model(**settings: Any) -> Transformer:
    size = len(SPECIAL_PIECES) + len(WORDS)
    return Transformer(TransformerSettings(**{
        "hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
        "source_vocab_size": size, "target_vocab_size": size, **settings}))


class Run(SavedRun):
    """A run with one checkpoint, and without settings.yaml."""

    model = make_model()

    def group(self, name: str, defaults: Any) -> Any:
        return SearchSettings(beam_size=2, length_penalty=0.3)

    def load_model(self, model: Any = None) -> Transformer:
        return self.model

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        vocabulary = WordVocabulary([*SPECIAL_PIECES, *WORDS])
        return vocabulary, vocabulary

    def checkpoint(self, which: str | None = None) -> str:
        return str(self.path / (which or "best") / "model")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a checkpoint of random parameters and of an optimizer's slot."""
    path = tmp_path_factory.mktemp("run")
    (path / "best").mkdir()
    with tf1.Graph().as_default():
        with PredictTowerContext(""):
            Run.model.build_graph(*[tf1.placeholder(s.dtype, s.shape) for s in Run.model.inputs()])
        tf1.get_variable("beta1_power", [], initializer=tf1.ones_initializer())
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assign_random(session, np.random.default_rng(1), 0.5)       # far from uniform: no two scores are close
            tf1.train.Saver().save(session, str(path / "best" / "model"), write_meta_graph=False)
    return path


@pytest.fixture(scope="module", autouse=True)
def fake_run() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translator_module, "open_run", lambda place, trust_code: Run(place))
        yield


@pytest.fixture(scope="module")
def plain(run_directory: Path) -> Translator:
    """Return a translator with the run's settings: two hypotheses. It is shared, because building one takes seconds."""
    return Translator(run_directory, engine="graph")


@pytest.fixture(scope="module")
def four_best(run_directory: Path) -> Translator:
    """Return a shared translator with other search settings."""
    return Translator(run_directory, n_best=4, length_penalty=1.0, device="cpu", engine="graph")


def test_a_translator_gives_one_text_a_line_in_order(four_best: Translator) -> None:
    translator = four_best
    lines = ["w1 w2 w3", "", "w4", "w1 w2 unseen w5 w6 w7", "w4"]
    together = translator.translate(lines)
    assert len(together) == 5 and together[1] == "" and together[2] == together[4] != ""
    assert [translator.translate([line])[0] for line in lines] == together
    stream = translator.translate_stream(f"{line}\n".encode() for line in lines)
    assert [hypotheses[0].text for hypotheses in stream] == together


def test_an_offline_predictor_translates_as_the_translator_does(plain: Translator, run_directory: Path) -> None:
    source, length = np.array([[5, 6, 7, EOS], [9, EOS, 0, 0]], np.int32), np.array([4, 2], np.int32)
    predictor = OfflinePredictor(translation_config(run_directory))
    for got, expected in zip(predictor(source, length), plain.predictor(source, length), strict=True):
        np.testing.assert_array_equal(got, expected)
    tokens, scores = OfflinePredictor(translation_config(run_directory, beam_size=3, n_best=2))(source, length)
    assert tokens.shape[:2] == scores.shape == (2, 2)


def test_scores_are_the_teacher_forced_log_probabilities(four_best: Translator) -> None:
    translator = four_best
    source, length = np.array([[5, 6, 7, EOS]], np.int32), np.array([4], np.int32)
    tokens, scores = translator.predictor(source, length)
    with translator.predictor.graph.as_default():
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True), PredictTowerContext("forced"):
            memory = Run.model.encode(tf.repeat(source, 4, axis=0), tf.repeat(length, 4))
            target = tf.constant(tokens[0])
            log_prob = tf.gather(tf.nn.log_softmax(Run.model.decode(memory, shift_right(target))), target,
                                 batch_dims=2)  # [n_best, length]
            forced = translator.predictor.sess.run(log_prob)
    written = tokens[0] != 0
    expected = (forced * written).sum(1) / ((5 + written.sum(1)) / 6)
    np.testing.assert_allclose(scores[0], expected, rtol=1e-4)
    assert (np.diff(scores[0]) <= 0).all() and len({tuple(row) for row in tokens[0]}) == 4


@pytest.mark.thorough
def test_details_are_of_the_tokens_of_each_hypothesis(run_directory: Path) -> None:
    lines = ["w1 w2 w3", "", "w4", "w1 w2 w3 w4 w5 w6"]
    plain, asked = (Translator(run_directory, beam_size=3, n_best=2, length_penalty=0.0, log_probs=detailed,
                               attention=detailed, stream=StreamSettings(max_source_length=4), engine="graph")
                    for detailed in (False, True))
    for without, found in zip(plain.translate_nbest(lines), asked.translate_nbest(lines), strict=True):
        assert without == found and all(hypothesis.details is None for hypothesis in without)
        for hypothesis in found:
            if not hypothesis.text:
                continue
            details = hypothesis.details
            pieces = details.source_ids.count(EOS)
            assert asked.target_vocabulary.decode([i for i in details.ids if i != EOS]) == hypothesis.text
            assert details.log_probs.sum() / pieces == pytest.approx(hypothesis.score, abs=1e-4)
            assert details.attention.shape == (len(details.ids), len(details.source_ids))
            np.testing.assert_allclose(details.attention.sum(1), 1.0, atol=1e-5)


def test_n_best_translations_come_best_first(four_best: Translator) -> None:
    found = four_best.translate_nbest(["w1 w2", ""])
    scores = [hypothesis.score for hypothesis in found[0]]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert found[1] == [("", 0.0)]


def test_search_settings_are_the_runs_where_none_are_given(plain: Translator, four_best: Translator) -> None:
    assert plain.search == SearchSettings(beam_size=2, length_penalty=0.3)
    assert four_best.search == SearchSettings(beam_size=4, n_best=4, length_penalty=1.0)


def test_a_checkpoint_may_be_named_by_its_prefix(run_directory: Path) -> None:
    prefix = str(run_directory / "best" / "model")
    with TrainedModel(Run(run_directory), prefix) as trained:
        assert trained.checkpoint == prefix


def test_a_checkpoint_that_lacks_a_variable_of_the_model_is_refused(
        run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "model", make_model(decoder_layers=2))
    with pytest.raises(CheckpointError, match="transformer/decoder/layer_1/.* is not in this checkpoint"):
        Translator(run_directory, beam_size=1, engine="graph")


def test_a_checkpoint_of_other_sizes_is_refused(run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "model", make_model(filter_size=48))
    with pytest.raises(CheckpointError, match=r"has shape \[16, 32\] in this checkpoint but \[16, 48\] in the model"):
        Translator(run_directory, beam_size=1, engine="graph")


def test_a_missing_or_damaged_checkpoint_is_one_clear_error(run_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="last: the checkpoint does not exist"):
        Translator(run_directory, checkpoint="last", engine="graph")
    for file in (run_directory / "best").iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[:-20] if ".data" in file.name else content)
    with pytest.raises(CheckpointError, match="damaged|not a readable"):
        Translator(run_directory, checkpoint=str(tmp_path / "model"), beam_size=1, engine="graph")


def test_an_empty_list_of_runs_or_checkpoints_is_refused(run_directory: Path) -> None:
    for arguments in ([[]], [run_directory, None]):
        with pytest.raises(SettingsError, match="A list of runs, checkpoints or models is empty"):
            Translator(*arguments, checkpoint=[])       # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_refused(run_directory: Path) -> None:
    with pytest.raises(SettingsError, match="GPU 0 was not found"):
        Translator(run_directory, device="gpu:0", engine="graph")
    with pytest.raises(SettingsError, match="choose cpu, gpu or gpu:N"):
        Translator(run_directory, device="tpu", engine="graph")


def test_one_text_gives_one_translation(four_best: Translator) -> None:
    translator = four_best
    assert translator.translate("w1 w2 w3") == translator.translate(["w1 w2 w3"])[0]
    assert translator.translate_nbest("w1 w2 w3") == translator.translate_nbest(["w1 w2 w3"])[0]
    assert translator.translate("") == ""
    with pytest.raises(SettingsError, match="takes lines, not one text"):
        translator.translate_stream("w1 w2")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forked processes here")
def test_a_forked_process_is_refused_and_does_not_hang(run_directory: Path, plain: Translator) -> None:
    plain.translate(["w1"])

    def attempt(what: Callable[[], object]) -> str:
        try:
            return str(what())
        except SettingsError as error:
            return f"refused: {error}"

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        said = [attempt(lambda: plain.translate(["w1"])), attempt(lambda: Translator(run_directory, engine="graph"))]
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert len(said) == 2 and all(line.startswith("refused: TensorFlow was used before") for line in said)


def test_predictors_are_built_in_several_threads() -> None:
    def build(number: int) -> float:
        predictor = make_predictor(PredictConfig(
            tower_func=lambda x: tf.identity(x + number, name="y"),
            input_signature=[tf.TensorSpec([], tf.float32, "x")], input_names=["x"], output_names=["y"]))
        return float(predictor(1.0)[0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [1.0, 2.0, 3.0, 4.0]


class TargetPrefix(LogitsProcessor):
    """A processor that forces translations to begin with the input `prefix`, padded with 0."""

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None, None], tf.int32, "prefix")]

    def __call__(self, logits: Any, context: StepContext) -> Any:
        prefix = tf.pad(context.for_rows(context.inputs["prefix"]), [[0, 0], [0, 1]])
        wanted = prefix[:, tf.minimum(context.step, tf.shape(prefix)[1] - 1)][:, None]
        free = tf.equal(wanted, 0) | tf.equal(tf.range(context.vocabulary_size)[None], wanted)
        return tf.where(free, logits, NEG_INF)


def test_a_processor_of_ones_own_and_the_input_it_reads_are_given_to_the_translator(
        run_directory: Path, four_best: Translator) -> None:
    translator = Translator(run_directory, n_best=4, length_penalty=1.0, processors=[TargetPrefix()], engine="graph")
    word = translator.target_vocabulary.piece_to_id
    prefixes = [{"prefix": [word("w3"), word("w4"), word("w3")]}, {"prefix": []}, {"prefix": [word("w9")]}]
    lines = ["w1 w2 w3", "w1 w2 w3", "w1"]
    found = translator.translate(lines, prefixes)
    assert found[0].startswith("w3 w4 w3") and found[2].startswith("w9")
    assert found[1] == four_best.translate(lines[1])
    assert translator.translate(lines[0], prefixes[0]) == found[0]
    with pytest.raises(SettingsError, match="inputs source, source_length, prefix, each to be passed once"):
        translator.translate(lines)


@pytest.mark.thorough
def test_a_trained_model_gives_its_weights_after_a_predictor_and_until_it_is_closed(run_directory: Path) -> None:
    with TrainedModel(Run(run_directory)) as trained:
        search = SearchSettings(beam_size=1)
        predict = trained.predictor(search_tower(trained.model, search), search_signature(trained.model, search),
                                    ["tokens"])
        weights = trained.weights()
    reader = tf.train.load_checkpoint(str(run_directory / "best" / "model"))
    assert set(weights) == set(reader.get_variable_to_shape_map()) - {"beta1_power"}
    assert all(np.array_equal(value, reader.get_tensor(name)) for name, value in weights.items())
    assert predict([[4, 2]], [2])[0].shape[:2] == (1, 1)


@pytest.mark.thorough
def test_lines_ask_for_different_things_and_each_gets_what_it_would_alone(run_directory: Path) -> None:
    translator = Translator(run_directory, beam_size=3, engine="graph")
    options = [LineOptions(), LineOptions(prefix="w3 w4"), LineOptions(avoid=["w2", "w5 w5"]), LineOptions(n_best=3),
               LineOptions(search={"min_length": 6, "beam_size": 1}), LineOptions(prefix="w9", avoid=["w9"]),
               LineOptions(prefix="w3 w4"), LineOptions()]
    lines = ["w1 w2 w3", "w1 w2 w3", "w4", "w1 w2", "w1", "w1 w2 w3", "", "w4"]
    together = translator.translate_nbest(lines, options=options)
    for line, asked, found in zip(lines, options, together, strict=True):
        alone = translator.translate_nbest(line, options=asked)
        assert [h.text for h in found] == [h.text for h in alone]
        np.testing.assert_allclose([h.score for h in found], [h.score for h in alone], rtol=1e-4)
    texts = [found[0].text for found in together]
    assert texts[1].startswith("w3 w4") and texts[5].split()[0] == "w9" and "w9" not in texts[5].split()[1:]
    assert "w2" not in texts[2].split() and len(together[3]) == 3 and len(texts[4].split()) >= 6 and texts[6] == ""
    assert len(together[0]) == 1


@pytest.mark.thorough
def test_plain_lines_have_no_tower_but_the_plain_one_and_the_others_one_for_what_they_ask(run_directory: Path) -> None:
    translator = Translator(run_directory, beam_size=2, engine="graph")
    before = len(translator.predictor.graph.get_operations())
    translator.translate(["w1", "w2 w3"], options=[LineOptions(), LineOptions(n_best=1)])
    assert len(translator.predictor.graph.get_operations()) == before
    translator.translate(["w1", "w2 w3"], options=[LineOptions(prefix="w3"), LineOptions(prefix="w3 w4")])
    after = len(translator.predictor.graph.get_operations())
    assert after > before
    translator.translate(["w4"], options=[LineOptions(prefix="w3 w4")])
    assert len(translator.predictor.graph.get_operations()) == after


@pytest.mark.thorough
def test_options_of_all_lines_hold_for_lines_with_others(run_directory: Path) -> None:
    translator = Translator(run_directory, beam_size=3, options=LineOptions(prefix="w3", avoid=["w4"]), engine="graph")
    found = translator.translate(["w1 w2", "w1 w2"], options=[LineOptions(), LineOptions(prefix="w7", avoid=["w5"])])
    assert found[0].startswith("w3") and found[0] == translator.translate("w1 w2") and found[1].startswith("w7")
    assert not set(found[1].split()) & {"w4", "w5"}


def test_a_line_that_asks_for_what_cannot_be_is_named(plain: Translator) -> None:
    for wrong, match in ((LineOptions(search={"beam_size": 0}), "deu line 2: beam_size=0"),
                         (LineOptions(inputs={"prefex": [1]}), "The input 'prefex' of a line is not known")):
        with pytest.raises(TowerNMTError, match=match):
            list(plain.translate_stream(["w1", "w2"], "deu", options=[LineOptions(), wrong]))
    with pytest.raises(SettingsError, match="not both"):
        plain.translate(["w1"], inputs=[{}], options=[LineOptions()])
    for field in ({"prefix": 3}, {"avoid": "w1"}, {"avoid": [1]}, {"n_best": True}, {"n_best": 0},
                  {"search": {"bem": 1}}, {"partial_word": "yes"}):
        with pytest.raises(SettingsError, match=next(iter(field))):
            LineOptions(**field)


@pytest.mark.thorough
def test_a_reranker_orders_all_that_the_search_finds(run_directory: Path, four_best: Translator) -> None:
    lines = ["w1 w2 w3", "", "w4", "w1 w2 unseen w5 w6 w7", "w4"]
    found = four_best.translate_nbest(lines)
    risk = MinimumBayesRisk("chrf")
    translator = Translator(run_directory, n_best=4, length_penalty=1.0, device="cpu", reranker=risk, engine="graph")
    reranked = translator.translate_nbest(lines)
    assert reranked == risk(lines, found) and reranked != found
    assert translator.translate_nbest(lines, options=[LineOptions(n_best=1)] * 5) == reranked
    (six_best,) = translator.translate_nbest(lines[:1], options=[LineOptions(n_best=6)])
    assert len(six_best) == 6 > len(reranked[0])


@pytest.mark.thorough
def test_lines_hold_their_phrases_and_the_terms_that_are_in_them(run_directory: Path, four_best: Translator) -> None:
    terms = Terminology([Term("w1 w2", "w14 w15"), Term("w3", "w13")])
    translator = Translator(run_directory, n_best=4, length_penalty=1.0, options=LineOptions(terminology=terms),
                            engine="graph")
    lines = ["w0 w1 w2", "w3 w4 w1", "w5 w6", "w3 w1 w2 w3"]
    found = translator.translate_nbest(lines, options=[
        LineOptions(), LineOptions(constraints=["w12", "w13", "w12"]), LineOptions(), LineOptions()])
    assert "w14 w15" in found[0][0].text and [term.source for term in found[0].terms] == ["w1 w2"]
    assert found[1][0].text.split().count("w12") >= 2 and "w13" in found[1][0].text.split()
    assert found[2] == four_best.translate_nbest(lines[2:3])[0] and found[2].terms == []
    assert "w13" in found[3][0].text.split() and [term.source for term in found[3].terms] == ["w3", "w1 w2"]


@pytest.mark.thorough
def test_each_piece_of_a_long_line_holds_the_terms_that_are_in_it_and_the_first_one_the_lines_phrases(
        run_directory: Path) -> None:
    terms = Terminology([Term("w2", "w12"), Term("w5", "w13")])
    translator = Translator(run_directory, beam_size=4, stream=StreamSettings(max_source_length=3), engine="graph")
    options = LineOptions(constraints=["w15"], terminology=terms)
    whole, = translator.translate_nbest(["w1 w2 w3 w4 w5 w6"], options=[options])
    first, = translator.translate_nbest(["w1 w2 w3"], options=[options])
    second, = translator.translate_nbest(["w4 w5 w6"], options=[LineOptions(terminology=terms)])
    assert whole[0].text == f"{first[0].text} {second[0].text}"
    assert [term.target for term in whole.terms] == ["w12", "w13"]


def no_graph(*arguments: Any) -> Any:
    raise NotImplementedError("a graph is built")


def test_a_terminology_with_a_word_that_the_vocabulary_cannot_write_is_refused_before_a_graph_is_built(
        run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "_graph", no_graph)
    with pytest.raises(DataError, match="terms.tsv line 2: 'house' contains text that the target vocabulary"):
        Translator(run_directory, beam_size=1, options=LineOptions(terminology=Terminology([
            Term("Haus", "house", where="terms.tsv line 2")])), engine="graph")


def test_a_shortlist_that_is_not_there_or_of_other_vocabularies_is_refused_before_a_graph_is_built(
        run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "_graph", no_graph)
    with pytest.raises(DataError, match="de-en.lexicon: the file does not exist: make it"):
        Translator(run_directory, shortlist=str(tmp_path / "de-en.lexicon"), engine="graph")
    other = WordVocabulary([*SPECIAL_PIECES, "other"])
    none = np.zeros(0, np.int64)
    Lexicon.of(Entries(none, none, np.zeros(0), np.zeros(other.size)), other, other).save(tmp_path / "other")
    with pytest.raises(SettingsError, match="other was made with other vocabularies"):
        Translator(run_directory, shortlist=str(tmp_path / "other"), engine="graph")


@pytest.mark.thorough
def test_phrases_are_held_with_a_shortlist_that_does_not_have_them(run_directory: Path, tmp_path: Path) -> None:
    vocabulary = Run(run_directory).vocabularies()[0]
    pairs = np.arange(4, vocabulary.size)
    Lexicon.of(Entries(pairs, pairs, np.ones(len(pairs)), np.zeros(vocabulary.size)), vocabulary, vocabulary
               ).save(tmp_path / "lexicon")
    translator = Translator(run_directory, beam_size=4, shortlist=str(tmp_path / "lexicon"), engine="graph")
    assert set(translator.translate("w1 w2 w3").split()) <= {"w1", "w2", "w3", "<unk>"}
    held = translator.translate("w1 w2 w3", options=LineOptions(constraints=["w9"]))
    assert "w9" in held.split() and set(held.split()) <= {"w1", "w2", "w3", "w9", "<unk>"}
    other = WordVocabulary([*SPECIAL_PIECES, *WORDS[:-1]])
    Lexicon.of(Entries(pairs[:-1], pairs[:-1], np.ones(len(pairs) - 1), np.zeros(other.size)), other, other
               ).save(tmp_path / "other")
    with pytest.raises(SettingsError, match="other was made with other vocabularies"):
        Translator(run_directory, shortlist=str(tmp_path / "other"), engine="graph")


@pytest.mark.thorough
def test_what_looks_wrong_is_searched_again_with_the_settings_that_are_documented(
        run_directory: Path, plain: Translator) -> None:
    lines = ["w1 w2 w3", "w4", "w1 w2 w3 w4 w5 w6 w7", "w8 w9 w8 w9"]
    again = Translator(run_directory, retry=True, engine="graph")
    first, found = plain.translate_nbest(lines), again.translate_nbest(lines)
    second = again.translate_nbest(lines, options=[LineOptions(search=retry_settings(plain.search))] * len(lines))
    assert any(translation.fault for translation in first)      # random weights loop
    for before, other, kept in zip(first, second, found, strict=True):
        assert kept == (other if worse(before.fault, other.fault) else before)
        assert kept.retried == bool(before.fault)
