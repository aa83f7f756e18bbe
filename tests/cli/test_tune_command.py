"""`towernmt tune` without Ray: its exit status after a search."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from towernmt.cli.main import main
from towernmt.jobs.trials import FINISHED


@pytest.mark.parametrize(("stop_signal", "status"), [(None, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_search_that_a_signal_stopped_prints_its_table_and_has_the_status_of_the_signal(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop_signal: int | None,
        status: int) -> None:
    def search(trials: Any, table: Any, *others: Any) -> int | None:
        table.add_score(table.rows[0], 10, 12.5)
        table.rows[0].state = FINISHED
        return stop_signal

    monkeypatch.setattr("towernmt.jobs.tune_search.check_tune", lambda: None)
    monkeypatch.setattr("towernmt.jobs.tune_search.search", search)
    monkeypatch.setattr("towernmt.farm.ray_workers.ray_connection", lambda *_: nullcontext())
    (tmp_path / "space.yaml").write_text("optimizer.learning_rate: [0.001, 0.002]\n")
    arguments = ["--space", str(tmp_path / "space.yaml"), "--data", str(tmp_path / "data"), "--output",
                 str(tmp_path / "search"), "--preset", "tiny", "--set", "train.steps=10", "validation.steps=10"]
    assert main(["tune", *arguments]) == status
    printed = capsys.readouterr().out
    assert "12.50" in printed and "1 of 2 trials are incomplete" in printed and "The best is trial 1" in printed
