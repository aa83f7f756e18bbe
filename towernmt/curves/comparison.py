"""Runs side by side as text for a terminal, or as JSON: how they went, who was ahead when, and what differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from towernmt.callbacks.validation.metrics import mode_of
from towernmt.curves.differences import differences, without_differences
from towernmt.curves.final_figures import NOTHING, final_figures, short_number
from towernmt.curves.notes import notes_on
from towernmt.curves.outcome import outcome, score_text
from towernmt.curves.panels import AXES
from towernmt.curves.recorded_run import RecordedRun

_SHARES = (0.5, 1.0)        # of what the shortest run took


def as_text(runs: Sequence[RecordedRun], sizes: Sequence[int | None]) -> str:
    """Tables with a column for each run.

    Args:
        sizes: the parameters of each run, where they are known.
    """
    figures = [[figure.head, *figure.cells] for figure in final_figures(runs)]
    figures.append(["parameters", *(NOTHING if size is None else f"{size:,}" for size in sizes)])
    ahead = [[f"best {one.label} by {short_number(float(f'{one.until:.3g}'))} {one.unit}", *(
        NOTHING if value is None else score_text(one.metric, value) for value in one.scores)] for one in _ahead(runs)]
    differing = [[one.key, *one.values] for one in differences(runs)]
    head = ["", *(run.name for run in runs)]
    parts = [_aligned([head, *figures, *ahead])]
    if len(runs) > 1:
        parts.append(_aligned([["what differs", *head[1:]], *differing]) if differing
                     else without_differences(runs))
    return "\n\n".join([*parts, *(["\n".join(notes_on(runs))] if notes_on(runs) else [])])


def as_json(runs: Sequence[RecordedRun], sizes: Sequence[int | None]) -> dict[str, Any]:
    """The same as what JSON can hold; values that are not known are null."""
    return {
        "runs": [{"name": run.name, "path": str(run.path), "parameters": size, **asdict(outcome(run)),
                  "notes": run.notes} for run, size in zip(runs, sizes, strict=True)],
        "best_so_far": [{"score": one.label, "by": one.until, "unit": one.unit, "values": _by_name(runs, one.scores)}
                        for one in _ahead(runs)],
        "differences": {one.key: _by_name(runs, one.values) for one in differences(runs)},
        "notes": notes_on(runs)}


def _by_name(runs: Sequence[RecordedRun], values: Sequence[Any]) -> dict[str, Any]:
    return {run.name: value for run, value in zip(runs, values, strict=True)}


@dataclass(frozen=True)
class _Ahead:
    """The best score of each run until a place on an axis.

    Attributes:
        metric, label: the scalar of validation, and the same in words.
        until, unit: the place.
        scores: of each run; None for one that was not validated until there.
    """

    metric: str
    label: str
    until: float
    unit: str
    scores: list[float | None]


def _ahead(runs: Sequence[RecordedRun]) -> Iterator[_Ahead]:
    """The best scores until some places on each axis, up to the end of the shortest run.

    Runs without a validation are none; runs that go by different metrics have nothing in common.
    """
    metrics = {outcome(run).metric for run in runs if outcome(run).best is not None}
    if len(runs) < 2 or len(metrics) != 1:
        return
    metric, label = metrics.pop(), next(one.label for one in map(outcome, runs) if one.best is not None)
    for place, unit in AXES.values():
        ends = [row[place] for run in runs for row in run.rows[-1:] if place in row]
        for share in _SHARES if len(ends) == len(runs) else ():
            until = share * min(ends)
            found = [_best(run, metric, place, until) for run in runs]
            if any(value is not None for value in found):
                yield _Ahead(metric, label, until, unit, found)


def _best(run: RecordedRun, metric: str, place: str, until: float) -> float | None:
    scores = [row[metric] for row in run.rows if metric in row and row.get(place, math.inf) <= until]
    return (max if mode_of(metric) == "max" else min)(scores) if scores else None


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([f"{first:<{widths[0]}}", *(
        f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))]).rstrip()
        for first, *others in rows)
