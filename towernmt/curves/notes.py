"""What a reader of curves should know besides: of each run, and of comparing them."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.curves.differences import comparability
from towernmt.curves.recorded_run import RecordedRun


def notes_on(runs: Sequence[RecordedRun]) -> list[str]:
    """Sentences; a note that several runs share is one sentence."""
    of_runs: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            of_runs.setdefault(note, []).append(run.name)
    return [*(f"{'All runs' if len(names) == len(runs) > 1 else ', '.join(names)}: {note}."
              for note, names in of_runs.items()), *comparability(runs)]
