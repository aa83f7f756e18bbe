"""`towernmt rerank`: by minimum Bayes risk, by models, with specified or tuned weights, and refused arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from towernmt.cli import rerank
from towernmt.cli.main import main
from towernmt.cli.reranking_options import run_and_weight
from towernmt.core.errors import SettingsError
from towernmt.predict.pair_scorer import PairScore

NBEST = "0 ||| ab ||| -1.0\n0 ||| a b ||| -1.2\n1 |||  ||| 0\n2 ||| x y ||| -1\n2 ||| x z ||| -2\n"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"nbest": NBEST, "source": "A B\n\nX Y\n", "reference": "a b\n\nx z\n"}.items():
        Path(name).write_text(text)


class WordScorer:
    """A fake scorer: each additional or missing word costs 3, or 1 if the run is named `weak`."""

    def __init__(self, run: str, **_: Any) -> None:
        self._cost = 1.0 if run == "weak" else 3.0

    def score_stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairScore]:
        for source, target in pairs:
            yield PairScore(-self._cost * abs(len(source.split()) - len(target.split())), 1, 1)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "open_scorer", WordScorer)


def test_by_minimum_bayes_risk_no_model_and_no_source_is_needed(texts: None, capfd: Any) -> None:
    Path("nbest").write_text("".join(f"0 ||| {text} ||| -1\n" for text in (
        "odd", "the cat sat", "the cat sits", "the cat sat")))
    assert main(["rerank", "--input", "nbest", "--mbr", "chrf"]) == 0
    assert capfd.readouterr().out == "the cat sat\n"
    assert main(["rerank", "--input", "nbest", "--mbr", "chrf", "--mbr-aggregate", "--n-best", "2"]) == 0
    assert [line.split(" ||| ")[1] for line in capfd.readouterr().out.splitlines()] == ["the cat sat", "the cat sits"]


def test_a_reverse_model_with_its_weight_changes_the_order(texts: None, models: None, capfd: Any) -> None:
    command = ["rerank", "--input", "nbest", "--source", "source", "--length-penalty", "0"]
    assert main([*command, "--reverse-model", "runs/back:0.5", "--n-best", "2"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "0 ||| a b ||| -1.2000", "0 ||| ab ||| -2.5000", "1 |||  ||| 0.0000", "2 ||| x y ||| -1.0000",
        "2 ||| x z ||| -2.0000"]
    assert main([*command, "--reverse-model", "weak:0.1", "--scores"]) == 0
    assert capfd.readouterr().out.splitlines()[0] == "-1.1000\tab"


def test_tuning_prints_the_weights_and_reranks_with_them(texts: None, models: None, capfd: Any) -> None:
    for name, text in {"nbest": "0 ||| abc d ||| -1.0\n0 ||| a b c d ||| -1.5\n", "source": "A B C D\n",
                       "reference": "a b c d\n"}.items():
        Path(name).write_text(text)
    assert main(["rerank", "--input", "nbest", "--source", "source", "--tune", "reference", "--reverse-model", "back",
                 "--length-penalty", "0"]) == 0
    out, err = capfd.readouterr()
    assert out == "a b c d\n"
    # Two missing words cost 6, so a weight of 0.05 is too small: -1.3 compared with -1.5.
    assert "BLEU 0.00 before, 100.00 with --reverse-model back:0.10 --length-penalty 0" in err


@pytest.mark.parametrize("name", ["source", "reference"])
def test_tuning_needs_a_source_line_and_a_reference_for_each_list(name: str, texts: None, models: None, capfd: Any
                                                                  ) -> None:
    Path(name).write_text("a b\n\n")
    command = ["rerank", "--input", "nbest", "--source", "source", "--reverse-model", "r"]
    assert main([*command, "--tune", "reference"]) == 1
    assert f"{name} has 2 lines, but there are n-best lists of 3 lines: pass" in capfd.readouterr().err


def test_contradicting_options_are_refused(texts: None, models: None, capfd: Any) -> None:
    for arguments, message in (
            ([], "The reranker is missing"), (["--mbr", "chrf", "--reverse-model", "r"], "The reranker is missing"),
            (["--mbr", "ter"], "mbr=ter: choose chrf, bleu"), (["--mbr-aggregate", "--reverse-model", "r",
             "--source", "source"], "--mbr-aggregate needs --mbr chrf"),
            (["--mbr", "chrf", "--n-best", "-1"], "--n-best -1: pass 1 or more."),
            (["--mbr", "chrf", "--length-penalty", "1", "--cpu"], "--length-penalty and --cpu: only models depend on"),
            (["--mbr", "chrf", "--n-best", "0"], "--n-best 0: pass 1 or more."),
            (["--reverse-model", "r"], "as --source"), (["--mbr", "chrf", "--tune", "reference"],
                                                        "--mbr has no weights"),
            (["--reverse-model", "r", "--source", "source", "--output", "source"], "the same file")):
        assert main(["rerank", "--input", "nbest", *arguments]) == 1
        assert message in capfd.readouterr().err
    Path("source").write_text("A B\n")
    assert main(["rerank", "--input", "nbest", "--source", "source", "--reverse-model", "r"]) == 1
    assert "source has 1 lines, but there are n-best lists of more" in capfd.readouterr().err


def test_a_weight_stands_behind_the_last_colon(tmp_path: Path) -> None:
    (tmp_path / "run:2").mkdir()
    assert run_and_weight("runs/a:0.25", "--x") == ("runs/a", 0.25) and run_and_weight("runs/a", "--x") == ("runs/a", 1)
    assert run_and_weight(f"{tmp_path}/run:2", "--x") == (f"{tmp_path}/run:2", 1.0)
    for text in ("runs/a:much", ":2", "a:inf"):
        with pytest.raises(SettingsError, match="expected RUN or RUN:WEIGHT"):
            run_and_weight(text, "--x")
