"""The table of a search: a row a trial, with its settings, how far it came and its score."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from towernmt.callbacks.validation.metrics import Metric

WAITING, RUNNING, FINISHED, STOPPED, FAILED, INTERRUPTED = (
    "waiting", "running", "finished", "stopped early", "failed", "interrupted")


@dataclass
class Row:
    """A trial.

    Attributes:
        number: from 1.
        values: its settings that others have otherwise.
        state: one of the constants of this module.
        step: of its last validation.
        score: its best.
        why: it failed, in one sentence.
    """

    number: int
    values: dict[str, Any]
    state: str = WAITING
    step: int = 0
    score: float | None = None
    why: str = ""


@dataclass
class TrialTable:
    """All trials of a search.

    Attributes:
        metric: the score.
        rows: in the order of their numbers.
    """

    metric: Metric
    rows: list[Row] = field(default_factory=list)

    def add_score(self, row: Row, step: int, score: float) -> None:
        """Take in what a validation brought."""
        row.step = max(row.step, step)
        if row.score is None or self.metric.at_least_as_good(score, row.score):
            row.score = score

    def ranked(self) -> list[Row]:
        """The best first, failed trials and those without a score last."""
        sign = -1 if self.metric.mode == "max" else 1
        return sorted(self.rows, key=lambda row: (row.state == FAILED, row.score is None,
                                                  sign * (row.score or 0), row.number))

    def best(self) -> Row | None:
        """The trial with the best score that did not fail; None if there is none."""
        first = next(iter(self.ranked()), None)
        return None if first is None or first.state == FAILED or first.score is None else first

    def cells(self) -> list[list[str]]:
        """A head and a line a trial, the best first."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row.values))
        head = ["trial", self.metric.label, "updates", "state", *keys]
        return [head, *([str(row.number), "" if row.score is None else self.metric.text(row.score), str(row.step),
                         row.state, *(_shown(row.values.get(key)) for key in keys)] for row in self.ranked())]

    def as_tsv(self) -> str:
        """The table with tabs, and why trials failed behind the other columns."""
        head, *lines = self.cells()
        whys = [" ".join(row.why.split()) for row in self.ranked()]
        return "".join("\t".join(line) + "\n" for line in
                       ([*head, "why"], *([*line, why] for line, why in zip(lines, whys, strict=True))))

    def as_text(self, width: int = 120) -> str:
        """The table for a terminal, and a line for each trial that failed."""
        head, *lines = self.cells()
        return drawn(head, lines, width) + "".join(
            f"Trial {row.number} failed: {row.why}\n" for row in self.rows if row.state == FAILED)


def drawn(head: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> str:
    """A table without lines between its cells."""
    table = RichTable(box=None, pad_edge=False)
    for title in head:
        table.add_column(title, overflow="fold")
    for line in lines:
        table.add_row(*line)
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table, markup=False)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
