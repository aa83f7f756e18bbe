"""What validation found best: the records of the best checkpoints (`best/`) and of a mean of the last (`averaged/`)."""

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


@dataclass(frozen=True)
class KeptAverage:
    """The mean of checkpoints that was better than the best checkpoint, at the end of a training.

    Attributes:
        step: of the directory `step-N`: the last of `mean_of`.
        mean_of: the steps of the checkpoints.
        metric: the name of the score by which it was chosen.
        mode: "max" if a higher score is better, "min" if a lower one is.
        scores: what its validation gave, by name.
    """

    step: Natural
    mean_of: list[int]
    metric: str
    mode: str
    scores: dict[str, float]

    @property
    def score(self) -> float:
        """That of `metric`."""
        return self.scores[self.metric]

    def is_before(self, best: BestEntry) -> bool:
        """Whether it is taken rather than the best checkpoint.

        One of a step that the mean was compared with has lost. Of later ones the score decides; of equal scores the
        later step is the better. Where later ones are chosen by another metric, the mean does not count any more.
        """
        if best.step <= self.step:
            return True
        better = self.score > best.score if self.mode == "max" else self.score < best.score
        return best.metric == self.metric and better


@dataclass(frozen=True)
class AverageRecord:
    """What came of averaging at the end of a training.

    Attributes:
        compared_step: the last checkpoint when a mean was last compared.
        compared_last: `checkpoint.average` at that time.
        kept: the mean that is kept, which may be one of a former end; None: there is none.
    """

    compared_step: Natural
    compared_last: Natural
    kept: KeptAverage | None = None


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


def read_average_record(directory: Path) -> AverageRecord | None:
    """What came of averaging at the end; None where it was not done yet.

    Args:
        directory: `averaged/` of a run.
    Raises:
        CheckpointError: the record is damaged.
    """
    path = directory / RECORD
    if not path.exists():
        return None
    record = read_json(path, AverageRecord, f"Move {directory} away to have it made again.", CheckpointError)
    if record.kept is not None and record.kept.metric not in record.kept.scores:
        raise CheckpointError(f"{path}: kept.scores has no {record.kept.metric}. Move {directory} away to have it made "
                              "again.")
    return record
