"""The comparison of runs as text: the best scores so far, with the digits of the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from towernmt.plots.recorded_runs import RecordedRun
from towernmt.plots.run_comparison import comparison_as_json, comparison_as_text


def run_of(name: str, scores: dict[int, float], metric: str = "bleu") -> RecordedRun:
    rows: list[Any] = [{f"validation_{metric}": score, "global_step": step} for step, score in scores.items()]
    return RecordedRun(name, Path(name), rows, {"validation.metric": metric}, [])


def test_losses_have_the_digits_of_losses() -> None:
    runs = [run_of("a", {10: 2.12346, 20: 1.98766}, "loss"), run_of("b", {10: 2.5, 20: 1.99}, "loss")]
    table = [line.split() for line in comparison_as_text(runs, [None, None]).splitlines()]
    assert ["best", "nll", "by", "20", "updates", "1.9877", "1.9900"] in table
    assert ["best", "nll", "by", "10", "updates", "2.1235", "2.5000"] in table


@pytest.mark.parametrize(("end", "label"), [(1_005, "1k"), (100_500, "100k"), (1_006, "1.01k")])
def test_the_last_validation_of_the_shortest_run_counts_and_no_later_one(end: int, label: str) -> None:
    runs = [run_of("a", {end // 2: 1.0, end: 2.0}), run_of("b", {end // 2 + 1: 3.0, end: 4.0, end + 1: 5.0})]
    best_so_far = comparison_as_json(runs, [None, None])["best_so_far"]
    assert [(row["by"], row["values"]) for row in best_so_far] == [
        (end / 2, {"a": 1.0, "b": None}), (end, {"a": 2.0, "b": 4.0})]
    assert f"best BLEU by {label} updates" in comparison_as_text(runs, [None, None])


def test_a_run_that_has_just_begun_does_not_hide_the_best_scores_of_the_others() -> None:
    begun = RecordedRun("new", Path("new"), [{"nll": 8.0, "global_step": 1}], {}, [])
    runs = [run_of("a", {10: 1.0, 20: 2.0}), begun, run_of("b", {10: 3.0, 20: 4.0})]
    best_so_far = comparison_as_json(runs, [None] * 3)["best_so_far"]
    assert [(row["by"], row["values"]) for row in best_so_far] == [
        (10, {"a": 1.0, "new": None, "b": 3.0}), (20, {"a": 2.0, "new": None, "b": 4.0})]
