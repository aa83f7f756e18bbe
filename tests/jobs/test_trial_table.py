"""The table of a search: the best trial first, failed trials last, for both directions of the metric."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from towernmt.callbacks.validation_metrics import METRICS
from towernmt.cli.tune import refuse_foreign_files, trial_report
from towernmt.core.errors import SettingsError
from towernmt.jobs.trials import FAILED, FINISHED, STOPPED, TrialRow, TrialTable


def table_of(metric: str) -> TrialTable:
    table = TrialTable(METRICS[metric], [TrialRow(n, {"rate": n / 1000, "kind": "ab"[n % 2]}) for n in (1, 2, 3, 4)])
    for row, scores in zip(table.rows, ([3.0, 5.0, 4.0], [2.0, 1.0], [9.0], []), strict=True):
        for step, score in enumerate(scores, 1):
            table.add_score(row, 10 * step, score)
    for row, state in zip(table.rows, (FINISHED, STOPPED, FAILED, FAILED), strict=True):
        row.state = state
    table.rows[2].reason = "training\tdiverged."
    return table


def test_the_best_is_first_and_failed_trials_are_last() -> None:
    assert [row.number for row in table_of("bleu").ranked()] == [1, 2, 3, 4]
    assert [row.number for row in table_of("loss").ranked()] == [2, 1, 3, 4]


def test_the_best_score_of_a_trial_counts() -> None:
    assert [row.score for row in table_of("bleu").rows] == [5.0, 2.0, 9.0, None]
    assert [row.score for row in table_of("loss").rows] == [3.0, 1.0, 9.0, None]


def test_a_score_that_is_not_finite_never_leads() -> None:
    for metric, (first, second) in {"bleu": (2.0, 3.0), "loss": (3.0, 2.0)}.items():
        for values in ([math.nan], [math.nan, first], [math.inf, first], [-math.inf, first]):
            table = TrialTable(METRICS[metric], [TrialRow(1, {}), TrialRow(2, {})])
            for step, score in enumerate(values, 1):
                table.add_score(table.rows[0], 10 * step, score)
            table.add_score(table.rows[1], 10, second)
            assert table.rows[0].score == (None if len(values) == 1 else first)
            assert table.rows[0].step == 10 * len(values) and table.best() is table.rows[1]


def test_no_failed_trial_is_the_best() -> None:
    table = table_of("bleu")
    assert table.best() is table.rows[0]
    for row in table.rows:
        row.state = FAILED
    assert table.best() is None
    assert TrialTable(METRICS["bleu"]).best() is None


def test_the_file_has_a_row_a_trial_with_its_settings_and_why_it_failed() -> None:
    assert table_of("bleu").as_tsv() == (
        "trial\tBLEU\tupdates\tstate\trate\tkind\treason\n"
        "1\t5.00\t30\tfinished\t0.001\tb\t\n"
        "2\t2.00\t20\tstopped early\t0.002\ta\t\n"
        "3\t9.00\t10\tfailed\t0.003\tb\ttraining diverged.\n"
        "4\t\t0\tfailed\t0.004\ta\t\n")


def test_the_line_of_a_trial_names_the_leading_trial_even_if_its_score_is_0() -> None:
    table = TrialTable(METRICS["bleu"], [TrialRow(1, {}), TrialRow(2, {})])
    table.add_score(table.rows[0], 10, 0.0)
    table.rows[0].state = FINISHED
    assert trial_report(table, table.rows[0]) == (
        "trial 1 finished: 10 updates, best BLEU 0.00 (1/2 ended; so far trial 1 leads with 0.00)")


def test_a_terminal_gets_the_table_and_a_line_for_each_failure() -> None:
    lines = table_of("bleu").as_text().splitlines()
    assert lines[0].split() == ["trial", "BLEU", "updates", "state", "rate", "kind"]
    assert lines[1].split() == ["1", "5.00", "30", "finished", "0.001", "b"]
    assert "Trial 3 failed: training\tdiverged." in lines


@pytest.mark.parametrize("name", ["trials.tsv", "best.yaml", "ray"])
def test_files_of_the_user_are_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(SettingsError, match=f"{name} already exists and does not belong to a search"):
        refuse_foreign_files(tmp_path)
