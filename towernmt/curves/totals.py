"""Target tokens and minutes of training at each step that a run recorded.

`Progress` records both. Runs that were trained before it did recorded speeds, from which they follow: the tokens as
they were, the minutes without those of validation and saving.
"""

from __future__ import annotations

import numpy as np

TOKENS, MINUTES = "target_tokens_trained", "minutes_trained"
_TOKEN_SPEED, _STEP_SPEED = "target_tokens_per_second", "steps_per_second"


def add_totals(rows: list[dict[str, float]]) -> list[str]:
    """Give each row both totals, as far as the rows tell them.

    Args:
        rows: by rising step; changed in place.
    Returns:
        what is to be said of them.
    """
    notes = []
    if not any(MINUTES in row for row in rows) and any(_STEP_SPEED in row for row in rows):
        _derive(rows)
        notes.append("minutes are those of the updates alone, as those of validation and saving were not recorded")
    for name in (TOKENS, MINUTES):
        _between(rows, name)
    return notes


def _derive(rows: list[dict[str, float]]) -> None:
    """Totals from speeds: each holds since the row with a speed before it."""
    step = tokens = seconds = 0.0
    for row in rows:
        if row.get(_STEP_SPEED, 0.0) <= 0:
            continue
        taken = (row["global_step"] - step) / row[_STEP_SPEED]
        step, seconds = row["global_step"], seconds + taken
        row[MINUTES] = seconds / 60
        if _TOKEN_SPEED in row:
            tokens += row[_TOKEN_SPEED] * taken
            row[TOKENS] = tokens


def _between(rows: list[dict[str, float]], name: str) -> None:
    """Fill the rows that lack a total: between two others in proportion to the steps, behind the last as before it."""
    known = [(row["global_step"], row[name]) for row in rows if name in row]
    if not known:
        return
    steps, totals = zip((0.0, 0.0), *known, strict=True) if known[0][0] > 0 else zip(*known, strict=True)
    rate = (totals[-1] - totals[0]) / (steps[-1] - steps[0]) if steps[-1] > steps[0] else 0.0
    for row in rows:
        if name not in row:
            beyond = max(0.0, row["global_step"] - steps[-1])
            row[name] = float(np.interp(row["global_step"], steps, totals)) + rate * beyond
