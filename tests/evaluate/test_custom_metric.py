"""Functions as metrics: their scores, significance, reports, and refused functions."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError, SettingsError
from towernmt.evaluate.comparison import SignificanceSettings, compare
from towernmt.evaluate.custom_metric import CustomMetric
from towernmt.evaluate.metrics import MetricSettings, score_corpus
from towernmt.evaluate.report import Report, ReportSettings
from towernmt.evaluate.report_page import report_page_data

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PAGE = EXAMPLES.parent / "docs" / "guide" / "evaluating.md"
DRAWS = SignificanceSettings(samples=200, trials=300, seed=7)


def share_of_words(sources: Any, translations: Any, references: Any) -> list[float]:
    """Return 100 * the share of the words of the first reference that a translation contains."""
    return [100 * len(set(translation.split()) & set(reference.split())) / len(set(reference.split()))
            for translation, reference in zip(translations, references[0], strict=True)]


def settings(function: Any = share_of_words, name: str = "words") -> MetricSettings:
    return MetricSettings(("bleu",), custom=(CustomMetric(name, function),))


def test_the_score_is_the_mean_and_the_tests_draw_sentences(systems: Any, references: Any) -> None:
    comparison = compare(systems, references, settings(), DRAWS)
    by_hand = [np.array(share_of_words(None, system.hypotheses, references)) for system in systems]
    for score, scores in zip(comparison.scores["words"], by_hand, strict=True):
        assert score.score == pytest.approx(scores.mean())
        assert score.interval == pytest.approx(1.96 * scores.std() / len(scores) ** 0.5, rel=0.25)
    baseline, better, same = comparison.scores["words"]
    assert baseline.bootstrap_p is None
    assert [sure for _, _, sure in better.chances] == [True, True]
    differences = by_hand[2] - by_hand[0]
    signs = np.random.default_rng(1).choice([-1, 1], (2000, len(differences)))
    by_chance = np.mean(np.abs((signs * differences).mean(1)) >= abs(differences.mean()))
    assert same.randomization_p == pytest.approx(by_chance, abs=0.1)
    assert comparison.signatures["words"].startswith("nrefs:2|bs:200|seed:7|function:words|version:")


def test_equal_sentences_are_scored_once_and_sources_are_passed() -> None:
    calls: list[tuple[Any, Any, Any]] = []

    def metric(sources: Any, translations: Any, references: Any) -> list[int]:
        calls.append((sources, translations, references))
        return [len(text) for text in translations]

    custom = CustomMetric("length", metric)
    for source in (["a", "b", "a"], ["a", "b", "c"]):
        assert custom.scores(source, ["x", "yy", "x"], [["r", "s", "r"], ["t", "u", "t"]]) == [1, 2, 1]
    assert calls == [(["a", "b"], ["x", "yy"], [["r", "s"], ["t", "u"]]), (["c"], ["x"], [["r"], ["t"]])]


def test_reports_order_examples_by_the_function(systems: Any, references: Any) -> None:
    def mistakes(sources: Any, translations: Any, references: Any) -> list[float]:
        return [100 - score for score in share_of_words(sources, translations, references)]

    mistakes.lower_is_better = True     # type: ignore[attr-defined]
    reports = [Report(systems, references, None, ReportSettings(settings(function, name), DRAWS, examples_by=name))
               for function, name in ((share_of_words, "words"), (mistakes, "mistakes"))]
    assert reports[0].picks == reports[1].picks
    assert report_page_data(reports[0])["metric"] == "words"
    assert [set(bucket.scores) for bucket in reports[0].lengths] == [{"BLEU", "words"}] * len(reports[0].lengths)
    with pytest.raises(SettingsError, match="--examples-by ter: choose among chrf, bleu, words"):
        ReportSettings(settings(), examples_by="ter")


@pytest.mark.parametrize(("result", "sentence"), [
    ([1.0], "returned 1 scores for 2 translations"), ([1.0, float("nan")], "returned nan for 'b'"),
    ([1.0, "x"], "returned 'x' for 'b'"), (None, "returned None: it must return a number for each translation")])
def test_results_that_are_no_scores_are_refused(result: list[Any] | None, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        score_corpus(["a", "b"], [["a", "c"]], settings(lambda *_: result))


def test_an_exception_of_the_function_is_one_sentence_with_its_line() -> None:
    def broken(sources: Any, translations: Any, references: Any) -> list[float]:
        return [1 / len(np.array(reference.split(), int)) for reference in references[0]]

    def generated(sources: Any, translations: Any, references: Any) -> Any:
        yield 1.0
        raise KeyError("a\nb")

    for function, reason in ((broken, "ValueError: invalid literal for int.*"), (generated, r"KeyError: 'a\\nb'")):
        first = function.__code__.co_firstlineno
        with pytest.raises(DataError, match=rf"^The metric words failed \({reason}, line ({first + 1}|{first + 2}) of "
                                            rf"{__file__}\): correct the function, or leave out --metric\.$"):
            score_corpus(["a", "b"], [["c", "d"]], settings(function))


@pytest.mark.parametrize("error", [SettingsError("pass --source"), MemoryError("of the user")])
def test_errors_with_a_sentence_of_their_own_are_not_replaced(error: Exception) -> None:
    def refuse(sources: Any, translations: Any, references: Any) -> list[float]:
        raise error

    with pytest.raises(type(error)) as caught:
        score_corpus(["a"], [["c"]], settings(refuse))
    assert caught.value is error


def test_a_check_calls_the_function_with_one_sentence_and_keeps_no_score() -> None:
    calls: list[tuple[Any, Any, Any]] = []

    def metric(sources: Any, translations: Any, references: Any) -> list[int]:
        calls.append((sources, translations, references))
        return [1 for _ in translations]

    custom = CustomMetric("one", metric)
    custom.check(["a", "b"], [["r", "s"], ["t", "u"]])
    custom.check(None, [["r", "s"]])
    assert calls == [(["a"], ["r"], [["r"], ["t"]]), (None, ["r"], [["r"]])]
    assert custom.scores(["a"], ["r"], [["r"], ["t"]]) == [1] and len(calls) == 3


def test_a_command_uses_the_function_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def length(sources, translations, references):\n"
                               "    return [len(text.split()) for text in translations]\n\ndef bleu(a, b, c): ...\n\n"
                               "def sentences(a, b, c): ...\n\n"
                               "def one(a): ...\n")
    Path("ref").write_text("a b c\nd e\n")
    Path("hyp").write_text("a b\nd e f g\n")
    command = ["evaluate", "--reference", "ref", "--hypothesis-file", "hyp", "--metric"]
    assert main([*command, "mine.py:length"]) == 0
    assert "length = 3.00  nrefs:1|function:length|version:" in capsys.readouterr().out
    assert main(["evaluate", "--reference", "ref", "--system", "hyp", "ref", "--metric", "mine.py:length",
                 "--html", "page.html", "--bootstrap-samples", "20", "--randomization-trials", "20"]) == 0
    assert "length" in capsys.readouterr().out and "<th>length</th>" in Path("page.html").read_text()
    for name, sentence in (("mine.py:bleu", "two metrics have this name"),
                           ("mine.py:sentences", "a field of --json has this name"),
                           ("mine.py:missing", "has no 'missing'"),
                           ("mine.py:one", "expected a function of sources, translations and references")):
        assert main([*command, name]) == 1
        assert sentence in capsys.readouterr().err


def test_the_metric_of_the_manual_accepts_an_empty_reference(tmp_path: Path) -> None:
    code = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (tmp_path / "lengths.py").write_text(code)
    metric = CustomMetric.load(f"{tmp_path / 'lengths.py'}:missing_words")
    assert metric.lower_is_better
    assert metric.scores(None, ["a", "a", "a b c"], [["", "b c", "a b"]]) == [0, 50, 0]


@pytest.mark.parametrize(("location", "message"), [
    ("comet", r"--metric comet: name a file or module and its function, such as --metric my_metric\.py:my_function\."),
    ("none.py:score", r"--metric none\.py:score: the file none\.py does not exist: name a Python file and its func"),
    ("no_such.module:score", r"--metric no_such\.module:score: the module no_such\.module does not exist: name a file, "
                             r"such as --metric my_metric\.py:my_function, or install the module\.")])
def test_the_error_of_a_metric_that_cannot_be_found_names_the_option_and_its_form(location: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{message}"):
        CustomMetric.load(location)


def test_the_example_runs_comet_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the same interface replaces COMET, because its models have gigabytes. Only COMET_PYTHON has it."""
    (tmp_path / "comet.py").write_text(
        "class Model:\n    def predict(self, data, batch_size, gpus):\n        print('noise')\n"
        "        self.scores = [len(row['mt']) / len(row['src'] + row['ref']) for row in data]\n        return self\n\n"
        "def download_model(name): return name\n\ndef load_from_checkpoint(path): return Model()\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={quote(str(tmp_path))} exec {quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    metric = CustomMetric.load(f"{EXAMPLES / 'comet_metric.py'}:comet")
    monkeypatch.setenv("COMET_PYTHON", str(python))
    assert metric.scores(["aaaa", "b"], ["cc", "d"], [["ee", "f"]]) == pytest.approx([100 / 3, 50])
    with pytest.raises(SettingsError, match="pass --source"):
        metric.scores(None, ["x"], [["y"]])
    monkeypatch.setenv("COMET_PYTHON", str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"^COMET_PYTHON=.*/none cannot be started \(No such file or direct.*: set it"):
        metric.scores(["new"], ["x"], [["y"]])
    monkeypatch.delenv("COMET_PYTHON")
    with pytest.raises(DataError, match=r"COMET failed \(ModuleNotFoundError.*set COMET_PYTHON"):
        metric.scores(["new"], ["x"], [["y"]])
