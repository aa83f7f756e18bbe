"""A translator chooses the engine of each line, and translates as TensorFlow's graph does."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.interop.conftest import write_run
from tests.page_maker import page_maker
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary
from towernmt.interop.ctranslate2_engine import CTranslate2Translator
from towernmt.interop.ctranslate2_requests import difference
from towernmt.predict import engine_choice
from towernmt.predict.line_translator import SearchArguments, TrainedSearch
from towernmt.predict.lines.line_options import LineOptions, LineRequest
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.scorer import Scorer
from towernmt.predict.scorer_choice import open_scorer
from towernmt.predict.search.search_settings import EnsembleSettings, SearchSettings, StreamSettings
from towernmt.predict.translator import Translator


@pytest.fixture(scope="module")
def graph(run_on_disk: Path) -> Translator:
    return Translator(run_on_disk, device="cpu", engine="graph")


@pytest.fixture(scope="module")
def exported_run(original_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an export for CTranslate2."""
    run = Path(shutil.copytree(original_run, tmp_path_factory.mktemp("exported") / "run"))
    Translator(run, device="cpu", export_first=True)
    assert len(list((run / "exports").iterdir())) == 1
    return run


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, graph: Translator) -> list[TrainedSearch]:
    """The towers of the graph that a test would build; they are those of `graph`."""
    towers: list[TrainedSearch] = []

    def record(arguments: object) -> TrainedSearch:
        towers.append(graph._trained_search)
        return towers[-1]

    monkeypatch.setattr(engine_choice, "_graph", record)
    return towers


def test_an_export_translates_without_a_graph_as_the_graph_does(
        exported_run: Path, graph: Translator, lines: list[str], built: list[TrainedSearch]) -> None:
    translator = Translator(exported_run, device="cpu")
    assert translator.engine.startswith("CTranslate2 4.") and translator.engine.endswith(" float32")
    expected = graph.translate_nbest(lines)
    for ours, theirs in zip(translator.translate_nbest(lines), expected, strict=True):
        assert [one.text for one in ours] == [one.text for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-4)
    assert not built


def test_each_line_has_its_engine_and_its_place(exported_run: Path, graph: Translator, lines: list[str],
                                                built: list[TrainedSearch], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "towernmt")
    changed = LineOptions(search={"temperature": 2.0}), LineOptions(constraints=["w3 w1"]), LineOptions(n_best=3)
    requests = [LineRequest(line, changed[number % 4]) if number % 4 < 3 else LineRequest(line)
                for number, line in enumerate(lines * 2)]
    translator = Translator(exported_run, device="cpu")
    found = translator.translate_nbest(requests)
    assert [[one.text for one in line] for line in found] == [
        [one.text for one in line] for line in graph.translate_nbest(requests)]
    assert len(built) == 1
    translator.translate_nbest(requests)
    reasons = [record.getMessage() for record in caplog.records if "translates some lines" in record.getMessage()]
    assert len(reasons) == 2 and len(set(reasons)) == 2
    assert any("temperature=2.0" in text for text in reasons) and any("constraints" in text for text in reasons)


def test_the_length_of_a_line_decides_whether_it_is_too_long_for_an_export(
        exported_run: Path, graph: Translator, lines: list[str], built: list[TrainedSearch],
        caplog: pytest.LogCaptureFixture) -> None:
    """A translation has at most 2 * (tokens + 1) + 4 tokens."""
    caplog.set_level(logging.INFO, "towernmt")
    translator = Translator(exported_run, device="cpu")
    model = translator._trained_search._export.result._model  # type: ignore[attr-defined]
    model.description = dataclasses.replace(model.description, positions=20)
    short = [line for line in lines if len(line.split()) < 8]
    assert translator.translate(short) == graph.translate(short) and not built
    assert translator.translate(lines) == graph.translate(lines) and len(built) == 1
    assert any(message.endswith(
        "some lines, because they or their translations may be too long: the export has 20 positions.")
        for message in caplog.messages)
    prefixes = [LineOptions(prefix="w1 w2 w3 w4 w5 w6 w7 w8 w9 w0 w1 w2 w3 w4 w5 w6 w7"), LineOptions()] * 3
    assert translator.translate(short[:6], options=prefixes) == graph.translate(short[:6], options=prefixes)


@pytest.mark.parametrize(("search", "max_source_length"), [
    ({"max_length_factor": 4.0, "max_length_constant": 10}, 256), ({}, 600)])
def test_limits_of_long_lines_leave_short_lines_to_ctranslate2(
        exported_run: Path, lines: list[str], built: list[TrainedSearch], search: dict[str, Any], max_source_length: int
        ) -> None:
    stream = StreamSettings(max_source_length=max_source_length)
    translator = Translator(exported_run, device="cpu", stream=stream, **search)
    translator.translate(lines)
    assert translator.engine.startswith("CTranslate2") and not built


GREEDY = {"beam_size": 1}


def test_the_graph_avoids_phrases_at_the_beginning(
        exported_run: Path, graph: Translator, lines: list[str], built: list[TrainedSearch]) -> None:
    translator, texts = Translator(exported_run, device="cpu"), [line for line in lines if line]
    plain = graph.translate(texts, options=[LineOptions(search=GREEDY)] * len(texts))
    options = [LineOptions(search=GREEDY, avoid=[f"<s> {(translation or 'w1').split()[0]}"])
               for translation in plain]
    expected = graph.translate(texts, options=options)
    assert expected != plain and translator.translate(texts, options=options) == expected and len(built) == 1


def test_the_graph_ends_with_a_whole_translation_that_a_line_requires(
        exported_run: Path, graph: Translator, lines: list[str], built: list[TrainedSearch]) -> None:
    options = [LineOptions(constraints=["<s> w3 w1 </s>"], n_best=2), LineOptions()] * len(lines)
    found, expected = (translator.translate_nbest(lines, options=options[:len(lines)])
                       for translator in (Translator(exported_run, device="cpu"), graph))
    assert [[one.text for one in line] for line in found] == [[one.text for one in line] for line in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-4)
    assert {line[0].text for line in found[::2]} <= {"w3 w1", ""} and len(built) == 1


@pytest.fixture(scope="module")
def subword_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported run whose subwords are a letter that ends a word, or one that does not."""
    pieces = [piece for letter in "abcdefgh" for piece in (f"{letter}@@", letter)]
    vocabulary = BpeCodesVocabulary(b"#version: 0.2\nx y</w>\n", [*SPECIAL_PIECES, *pieces])
    run = write_run(tmp_path_factory.mktemp("subwords") / "run", vocabulary=vocabulary)
    Translator(run, device="cpu", export_first=True)
    return run


def test_the_graph_repeats_lines_that_would_begin_with_an_avoided_word_that_other_words_may_contain(
        subword_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, translator = Translator(subword_run, device="cpu", engine="graph"), Translator(subword_run, device="cpu")
    built: list[TrainedSearch] = []

    def record(arguments: object) -> TrainedSearch:
        built.append(graph._trained_search)
        return built[-1]

    monkeypatch.setattr(engine_choice, "_graph", record)
    texts = ["ab ba", "cab", "hag fed a", "e", "bad cafe", "gab h", "face a b", "deaf ed"]
    for letter in "abcdefgh":
        options = [LineOptions(search=GREEDY, avoid=[letter])] * len(texts)
        assert translator.translate(texts, options=options) == graph.translate(texts, options=options)
    assert len(built) == 1


@pytest.fixture(scope="module")
def manual() -> Any:
    """The program that writes the manual's page of engines."""
    return page_maker("engines")


@pytest.mark.slow
def test_each_search_of_the_manual_by_ctranslate2_has_the_result_of_the_graph(
        manual: Any, exported_run: Path, graph: Translator, lines: list[str], built: list[TrainedSearch]) -> None:
    searches = [search for examples in manual.SEARCHES.values() for search in examples
                if "averaged" not in search and not difference(SearchSettings(**search))]
    assert len(searches) > 12
    translator = Translator(exported_run, device="cpu")
    for search in searches:
        options = [LineOptions(search={"n_best": 1, **search})] * len(lines)
        for ours, theirs in zip(translator.translate_nbest(lines, options=options),
                                graph.translate_nbest(lines, options=options), strict=True):
            assert [one.text for one in ours] == [one.text for one in theirs], search
            assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-4), search
    assert not built


OPTIONS: dict[str, dict[str, Any]] = {
    "prefix": {"prefix": "w3"}, "partial_word": {"prefix": "w1", "partial_word": True},
    "prefix_every_piece": {"prefix": "w3", "prefix_every_piece": False}, "avoid": {"avoid": ["w3"]},
    "constraints": {"constraints": ["w3"]}, "terminology": {"terminology": Terminology([Term("w1", "w3")])},
    "protect": {"protect": ["w1"]}, "n_best": {"n_best": 3}, "details": {"details": False},
    "search": {"search": {"max_tokens": 5}}, "inputs": {"inputs": {"other": np.zeros(1)}}}
"""An example of each option of a line."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_of_a_line_has_the_engine_of_the_manual(
        manual: Any, exported_run: Path, built: list[TrainedSearch], name: str) -> None:
    [row] = [row for row in manual.page().splitlines() if row.startswith(f"| `{name}` |")]
    translator = Translator(exported_run, device="cpu")
    with suppress(SettingsError):       # the model has no other inputs
        translator.translate("w1 w2 w4", options=LineOptions(**OPTIONS[name]))
    assert ("| graph |" in row) == bool(built) and ("| CTranslate2 |" in row) != bool(built)


def test_ctranslate2_alone_gives_alignments_scores_and_words_for_unknown_tokens(
        exported_run: Path, lines: list[str], built: list[TrainedSearch]) -> None:
    details: dict[str, Any] = {"attention": True, "log_probs": True, "replace_unknown": True, "n_best": 3}
    found = Translator(exported_run, device="cpu", **details).translate_nbest(lines)
    assert any(translation[0].links() for translation in found) and not built


@pytest.mark.thorough
def test_only_the_graph_searches_again_for_a_faulty_translation(
        exported_run: Path, lines: list[str], built: list[TrainedSearch]) -> None:
    faults = {line: translation[0].fault for line, translation in zip(
        lines, Translator(exported_run, device="cpu").translate_nbest(lines), strict=True)}
    translator = Translator(exported_run, device="cpu", retry=True)
    right, wrong = ([line for line in lines if bool(faults[line]) is faulty] for faulty in (False, True))
    assert not any(translation.retried for translation in translator.translate_nbest(right)) and not built
    assert wrong and all(translation.retried for translation in translator.translate_nbest(wrong)) and built


@pytest.mark.thorough
def test_the_predictor_is_the_graph(exported_run: Path, graph: Translator, built: list[TrainedSearch]) -> None:
    assert Translator(exported_run, device="cpu").predictor is graph.predictor and built


def test_lines_without_details_are_translated_alone_and_have_none(exported_run: Path, lines: list[str],
                                                                  built: list[TrainedSearch]) -> None:
    translator = Translator(exported_run, device="cpu", log_probs=True, attention=True)
    options = [LineOptions(details=number % 2 == 0) for number in range(len(lines))]
    found = translator.translate_nbest(lines, options=options)
    for line, asked, translation in zip(lines, options, found, strict=True):
        details = translation[0].details
        assert (details is not None and details.log_probs is not None) is bool(line and asked.details)
    assert [one[0].text for one in found] == translator.translate(lines) and not built


def test_unknown_words_of_lines_without_details_are_replaced(exported_run: Path, lines: list[str],
                                                             built: list[TrainedSearch]) -> None:
    options = [LineOptions(details=False)] * len(lines)
    with_unknown, replaced = ([hypothesis.text for translation in Translator(
        exported_run, device="cpu", n_best=4, replace_unknown=replace).translate_nbest(lines, options=options)
        for hypothesis in translation] for replace in (False, True))
    assert any("<unk>" in text for text in with_unknown) and not any("<unk>" in text for text in replaced)
    assert not built


def test_the_first_use_exports_after_the_first_line_and_the_next_stream_uses_it(
        original_run: Path, tmp_path: Path, lines: list[str]) -> None:
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    translator = Translator(run, device="cpu")
    assert translator.engine == "graph" and not (run / "exports").exists()
    stream = translator.translate_stream(lines)
    first = next(stream)[0].text
    _join_exporter()
    assert translator.engine.startswith("CTranslate2")
    assert [first, *(best.text for best, *_ in stream)] == translator.translate(lines)
    assert Translator(run, device="cpu").engine == translator.engine


def test_another_precision_is_that_of_later_streams(exported_run: Path, tmp_path: Path, lines: list[str]) -> None:
    run = Path(shutil.copytree(exported_run, tmp_path / "run"))
    translator = Translator(run, device="cpu", stream=StreamSettings(window=1))
    float32, stream = translator.translate(lines), translator.translate_stream(lines)
    first = next(stream)[0].text
    translator.change_precision("int8")
    assert translator.engine.endswith(" int8") and translator.has_engine_choice
    assert [first, *(best.text for best, *_ in stream)] == float32
    other = CTranslate2Translator(run, device="cpu", precision="int8").translate_nbest(lines)
    for ours, theirs in zip(translator.translate_nbest(lines), other, strict=True):
        assert [one.text for one in ours] == [one.text for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-4)


def test_the_graph_alone_has_no_other_precision(graph: Translator) -> None:
    assert not graph.has_engine_choice
    with pytest.raises(SettingsError, match="precision=int8: this translator uses only .* Open a Translator with"):
        graph.change_precision("int8")


def test_a_run_in_use_by_another_exporter_is_translated_by_the_graph(original_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    translator = Translator(run, device="cpu")
    with DirectoryLock(run / "exports", "export to CTranslate2"):
        translator.translate("w1")
        _join_exporter()
        assert translator.engine == "graph"
    translator.translate("w1")
    _join_exporter()
    assert translator.engine.startswith("CTranslate2")


def test_a_run_that_cannot_be_written_is_exported_to_the_users_cache(
        original_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: list[TrainedSearch]) -> None:
    run = Path(shutil.copytree(original_run, tmp_path / "run"))
    (run / "exports").touch()       # in the way, also for the superuser
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    assert Translator(run, device="cpu", export_first=True).engine.startswith("CTranslate2")
    assert len(list((tmp_path / "cache/exports").glob("*/*/model.bin"))) == 1
    assert Translator(run, device="cpu").engine.startswith("CTranslate2") and not built


def _join_exporter() -> None:
    """Wait for the thread that exports a run."""
    for thread in threading.enumerate():
        if thread.name == "export":
            thread.join()


@pytest.mark.parametrize(("changes", "settings", "reason"), [
    ({"checkpoints": ["step-1", "step-1"]}, {}, "the model is an ensemble"),
    ({"processors": [object()]}, {}, "the search has custom processors"),
    ({"precision": "bfloat16"}, {}, "precision=bfloat16"),
    ({"search": SearchSettings(selection="sampling")}, {}, "selection=sampling: its samples do not have a seed"),
    ({"search": SearchSettings(temperature=2.0)}, {}, "temperature=2.0: it applies a temperature only to sampling"),
    ({}, {"architecture": "rnnsearch"}, "only the architecture transformer, not rnnsearch"),
    ({}, {"model": {"preprocess": "nr"}}, "model.preprocess='nr'"),
    ({}, None, "CTranslate2 cannot be loaded"),
])
def test_the_graph_translates_if_ctranslate2_cannot(
        original_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
        changes: dict[str, Any], settings: dict[str, Any] | None, reason: str) -> None:
    run = SavedRun(shutil.copytree(original_run, tmp_path / "run"))
    saved = yaml.safe_load(run.settings_file.read_text())
    run.settings_file.write_text(yaml.safe_dump({**saved, **(settings or {})}))
    if settings is None:
        monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setattr(engine_choice, "_graph", lambda arguments: "the graph")
    caplog.set_level(logging.INFO, "towernmt")
    arguments: dict[str, Any] = {
        "runs": [run], "checkpoints": [None], "models": [None], "ensemble": None, "device": "cpu",
        "search": SearchSettings(), "processors": (), "log_probs": False, "attention": False, **changes}
    assert engine_choice.open_engines(SearchArguments(**arguments), StreamSettings()) == "the graph"
    (line,) = caplog.messages
    assert line.startswith(f"{run.path}: TensorFlow's graph is used, because ") and reason in line


@pytest.mark.parametrize("search", [{"beam_size": 1000}, {"beam_size": 1, "n_best": 1000, "selection": "sampling"}])
def test_batches_with_many_hypotheses_of_a_sentence_have_fewer_sentences(
        exported_run: Path, built: list[TrainedSearch], search: dict[str, Any]) -> None:
    for use in (Translator, CTranslate2Translator):
        assert use(exported_run, device="cpu", **search).stream.batch_sentences == 16


@pytest.mark.parametrize(("options", "message"), [
    ({"precision": "float8"}, "--precision float8: --engine auto supports float32, bfloat16, float16, int16, int8"),
    ({"precision": "int8", "engine": "graph"}, "--precision int8: --engine graph supports float32, bfloat16, float16"),
    ({"device": "tpu"}, "device 'tpu': choose cpu, gpu or gpu:N")])
def test_an_unknown_precision_or_device_is_refused(
        exported_run: Path, built: list[TrainedSearch], options: dict[str, Any], message: str) -> None:
    for use in (Translator, open_scorer):
        with pytest.raises(SettingsError, match=message):
            use(exported_run, **{"device": "cpu", **options})
    assert not built


def test_weights_of_an_ensemble_are_refused_for_one_model_also_with_an_export(
        exported_run: Path, built: list[TrainedSearch]) -> None:
    for use in (Translator, open_scorer):
        with pytest.raises(SettingsError, match="1 members and the 2 weights 2,1"):
            use(exported_run, device="cpu", ensemble=EnsembleSettings(weights=(2.0, 1.0)))
    assert not built


def test_an_unknown_engine_is_refused(run_on_disk: Path) -> None:
    with pytest.raises(SettingsError, match="engine 'tensorflow': choose one of auto, graph"):
        Translator(run_on_disk, engine="tensorflow")


def test_an_export_scores_as_the_graph_does_and_the_graph_scores_longer_pairs(
        exported_run: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = list(zip(lines, reversed(lines), strict=True))
    expected = Scorer(exported_run, device="cpu").score(pairs, per_token=True)
    scorer = open_scorer(exported_run, device="cpu")
    built: list[Scorer] = []

    def build(*arguments: Any, **options: Any) -> Scorer:
        built.append(Scorer(*arguments, **options))
        return built[-1]

    monkeypatch.setattr("towernmt.predict.scorer.Scorer", build)

    def compare() -> None:
        for ours, theirs in zip(scorer.score(pairs, per_token=True), expected, strict=True):
            assert ours.pieces == theirs.pieces and ours.tokens == theirs.tokens
            assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)

    compare()
    assert not built
    monkeypatch.setattr(scorer._export.result, "max_length", 6)  # type: ignore[attr-defined]
    compare()
    assert len(built) == 1


def test_a_model_that_has_diverged_is_named_by_its_checkpoint(
        exported_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = open_scorer(exported_run, device="cpu")
    monkeypatch.setattr(scorer._export.result, "score_ids",  # type: ignore[attr-defined]
                        lambda sources, targets: [(np.nan, np.zeros(1))] * len(sources))
    with pytest.raises(DivergenceError, match=f"^{SavedRun(exported_run).checkpoint()}: the model's output is not"):
        scorer.score(("w1", "w2"))


@pytest.mark.processes
def test_the_command_imports_no_tensorflow_if_the_export_translates_all_lines(exported_run: Path) -> None:
    program = ("import sys; from towernmt.cli.main import main; "
               "status = main(sys.argv[1:]); sys.exit(status or 10 * ('tensorflow' in sys.modules))")
    done = subprocess.run([sys.executable, "-c", program, "translate", "--model", str(exported_run)],
                          input="w1 w2\n\nw3\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("\n")) == (0, 3) and "graph" not in done.stderr, done.stderr
