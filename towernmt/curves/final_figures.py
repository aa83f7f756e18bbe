"""The final figures of runs, as the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from towernmt.curves.outcome import Outcome, outcome
from towernmt.curves.recorded_run import RecordedRun

NOTHING = "–"


@dataclass(frozen=True)
class FinalFigure:
    """A column.

    Attributes:
        head: what it is.
        cells: of each run, as text.
    """

    head: str
    cells: list[str]


def final_figures(runs: Sequence[RecordedRun]) -> list[FinalFigure]:
    """Best, last and averaged score, updates, tokens, minutes, speed and loss; columns without anything are left out.

    Where the runs choose their best step by different metrics, each cell names its own.
    """
    found = [outcome(run) for run in runs]
    labels = {one.label for one in found if one.best is not None}
    alike = len(labels) < 2
    label = labels.pop() if len(labels) == 1 else "score"
    columns: list[tuple[str, Callable[[Outcome], str]]] = [
        (f"best {label}", lambda one: "" if one.best is None else one.text(one.best) if alike else one.best_text),
        ("at update", lambda one: _whole(one.best_step)),
        ("last", lambda one: "" if one.last is None else one.text(one.last)),
        ("averaged", lambda one: "" if one.averaged is None else one.text(one.averaged)),
        ("updates", lambda one: _whole(one.updates)),
        ("tokens", lambda one: _short(one.target_tokens)),
        ("minutes", lambda one: "" if one.minutes is None else f"{one.minutes:,.1f}"),
        ("tokens/s", lambda one: _whole(one.speed)),
        ("loss", lambda one: "" if one.loss is None else f"{one.loss:.3f}")]
    table = [FinalFigure(head, [cell(one) for one in found]) for head, cell in columns]
    return [FinalFigure(one.head, [text or NOTHING for text in one.cells]) for one in table if any(one.cells)]


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _short(value: float | None) -> str:
    return "" if value is None else short_number(value)


def short_number(value: float) -> str:
    """A number in little room: 12,500 as 12.5k, 2,000,000 as 2M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"
