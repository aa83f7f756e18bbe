"""`towernmt tune` without Ray: its exit status after a search, and its table after a resumed one."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.callbacks.validation_metrics import METRICS
from towernmt.cli.main import main
from towernmt.core.errors import SettingsError
from towernmt.jobs.trials import FAILED, FINISHED


def tune_arguments(directory: Path, monkeypatch: pytest.MonkeyPatch, search: Any, sets: Any = ("valid",)) -> list[str]:
    """Return the arguments of a search by `search` instead of Ray Tune, on data with these validation sets."""
    monkeypatch.setattr("towernmt.jobs.tune_search.check_tune", lambda: None)
    monkeypatch.setattr("towernmt.jobs.tune_search.search", search)
    monkeypatch.setattr("towernmt.farm.ray_workers.ray_connection", lambda *_: nullcontext())
    monkeypatch.setattr("towernmt.dataflow.batches.training_data.open_training_data",
                        lambda *_: SimpleNamespace(directory="data", validation_sets=sets))
    (directory / "space.yaml").write_text("optimizer.learning_rate: [0.001, 0.002]\n")
    return ["tune", "--space", str(directory / "space.yaml"), "--data", str(directory / "data"), "--output",
            str(directory / "search"), "--preset", "tiny", "--set", "train.steps=10", "validation.steps=10"]


@pytest.mark.parametrize(("stop_signal", "status"), [(None, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_search_that_a_signal_stopped_prints_its_table_and_has_the_status_of_the_signal(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop_signal: int | None,
        status: int) -> None:
    def search(trials: Any, table: Any, *others: Any) -> int | None:
        table.add_score(table.rows[0], 10, 12.5)
        table.rows[0].state = FINISHED
        return stop_signal

    assert main(tune_arguments(tmp_path, monkeypatch, search)) == status
    printed = capsys.readouterr().out
    assert "12.50" in printed and "1 of 2 trials are incomplete" in printed and "The best is trial 1" in printed


@pytest.mark.parametrize("refused", [False, True])
def test_a_resumed_search_that_ends_at_once_keeps_the_table_and_the_best_trial(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    def first_search(trials: Any, table: Any, *others: Any) -> None:
        for trial, score, state in zip(trials, (12.5, 14.0), (FINISHED, FAILED), strict=True):
            table.add_score(trial.row, 10, score)
            trial.row.state = state
            log = trial.directory / "run" / "log"
            log.mkdir(parents=True)
            (log / "stats.jsonl").write_text(json.dumps({METRICS["bleu"].scalar(): score, "global_step": 10}) + "\n")
        table.rows[1].reason = "training diverged."

    def resumed_search(*arguments: Any) -> int:
        if refused:
            raise SettingsError("--gpus 2: no machine has as many GPUs for a trial")
        return signal.SIGINT

    assert main(tune_arguments(tmp_path, monkeypatch, first_search)) == 0
    results = [(tmp_path / "search" / name).read_text() for name in ("trials.tsv", "best.yaml")]
    assert "1\t12.50\t10\tfinished" in results[0] and "2\t14.00\t10\tfailed" in results[0]
    assert main([*tune_arguments(tmp_path, monkeypatch, resumed_search), "--resume"]) == (1 if refused else 130)
    assert [(tmp_path / "search" / name).read_text() for name in ("trials.tsv", "best.yaml")] == results


def test_data_without_validation_text_are_refused_before_a_trial_begins(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def search(*arguments: Any) -> None:
        raise AssertionError

    assert main(tune_arguments(tmp_path, monkeypatch, search, sets=())) == 1
    assert "data has no validation text, by whose scores a search compares trials" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()
