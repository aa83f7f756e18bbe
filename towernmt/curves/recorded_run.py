"""What a run recorded of itself: its scalars over the updates, its settings, and what is to be said of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towernmt.checkpoint.former_settings import FORMER
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.files.directory_lock import is_written
from towernmt.curves.totals import add_totals
from towernmt.dataflow.text.cleaning import one_line

STATS = "stats.jsonl"
Row = dict[str, float]
"""The scalars that were put at one step, and `global_step`."""


@dataclass(frozen=True)
class RecordedRun:
    """A run, as far as it is recorded.

    Attributes:
        name: what it is called beside others.
        path: its directory.
        rows: the scalars, by rising step, each step once; with `target_tokens_trained` and `minutes_trained` wherever
            these are known, or follow from the speeds.
        settings: what `settings.yaml` holds, by dotted name, as it is called today; empty if the run has no such file.
        notes: sentences that a reader of its curves should know.
    """

    name: str
    path: Path
    rows: list[Row]
    settings: dict[str, Any]
    notes: list[str]

    def values(self, scalar: str) -> list[tuple[int, float]]:
        """Step and value of a scalar, where it was put."""
        return [(int(row["global_step"]), row[scalar]) for row in self.rows if scalar in row]

    @property
    def scalars(self) -> set[str]:
        """The names of all that was put."""
        return {name for row in self.rows for name in row}

    @property
    def last_step(self) -> int:
        """The last update that anything was put at; 0 for a run that recorded nothing."""
        return int(self.rows[-1]["global_step"]) if self.rows else 0


def is_run(path: Path) -> bool:
    """Whether a directory holds a run, or at least what one recorded."""
    run = SavedRun(path)
    return run.exists() or (run.log / STATS).is_file()


def read_run(path: str | Path, name: str) -> RecordedRun:
    """Read a run, one that is still training as well.

    Args:
        path: its directory.
        name: what it is to be called; signs that no text can hold, as a path may have, become U+FFFD.
    Raises:
        SettingsError: `settings.yaml` is damaged.
    """
    run = SavedRun(path)
    notes = ["still training"] if is_written(run.path) else []
    file = run.log / STATS
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    rows, damaged, unfinished = read_rows(text)
    if not rows:
        notes.append("nothing is recorded yet")
    if damaged:
        lines = "1 damaged line" if damaged == 1 else f"{damaged} damaged lines"
        notes.append(f"without {lines} of {STATS}")
    if unfinished:
        notes.append(f"the last line of {STATS} is unfinished, and left out")
    notes += add_totals(rows)
    settings = run.saved_settings() if run.exists() else {}
    return RecordedRun(one_line(name), run.path, rows, FORMER.as_recorded(settings), notes)


def read_rows(text: str) -> tuple[list[Row], int, bool]:
    """The rows in the text of a `stats.jsonl`.

    What was put at one step is one row. Where the steps go back, a run was resumed from there, and what was recorded
    of the steps that it made again is dropped. Numbers that are not finite are left out.

    Returns:
        the rows; how many lines are no rows; and whether the last one is such, as a killed process may leave it.
    """
    rows: list[Row] = []
    damaged, unfinished = 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is not None:
            _add(rows, row)
        elif number == len(lines):
            unfinished = True
        elif line.strip():
            damaged += 1
    return rows, damaged, unfinished


def _add(rows: list[Row], row: Row) -> None:
    step = row["global_step"]
    if rows and rows[-1]["global_step"] == step:
        rows[-1] = {**rows[-1], **row}
        return
    while rows and rows[-1]["global_step"] >= step:
        rows.pop()
    rows.append(row)


def _row(line: str) -> Row | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("global_step")) is not int:
        return None
    return {name: value for name, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def all_scalars(runs: Iterable[RecordedRun]) -> set[str]:
    """The names of all that any of the runs put."""
    return set().union(*(run.scalars for run in runs))
