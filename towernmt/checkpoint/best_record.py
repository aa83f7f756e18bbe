"""The record of the best checkpoints, `best/record.json`: which there are, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from towernmt.core.errors import CheckpointError
from towernmt.core.files.json_files import Natural, read_json

RECORD = "record.json"


@dataclass(frozen=True)
class BestEntry:
    """One kept checkpoint.

    Attributes:
        step: of the directory `step-N`.
        score: by which it was chosen.
        metric: the score's name.
    """

    step: Natural
    score: float
    metric: str


def read_record(directory: Path) -> list[BestEntry]:
    """The best checkpoints in a directory, the best first; none where there is no record.

    Args:
        directory: `best/` of a run.
    Raises:
        CheckpointError: the record is damaged; the message has its file and field.
    """
    path = directory / RECORD
    if not path.exists():
        return []
    return read_json(path, list[BestEntry], f"Mend it, or move {directory} away to begin a new one.", CheckpointError)
