"""The records of a run: best checkpoints, the average of the last ones, fingerprints of its inputs, and versions.

`best/` has a record of the checkpoints with the best validation scores, `averaged/` one of the average of the last
checkpoints.

`settings.yaml` has fingerprints of vocabulary, data and validation text under `made_from`, and versions under
`made_with`. If the run began with the parameters of a model, `made_from` also has the checksum of that model's weights.
`state.json` of each checkpoint has the fingerprints of vocabulary and data under `made_from`. Older runs have neither.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt import __version__
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.structured_files import Natural, read_json
from towernmt.core.temporary_directories import temporary_directory

if TYPE_CHECKING:
    from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.dataflow.text.validation_set import ValidationSet

RECORD = "record.json"


@dataclass(frozen=True)
class BestEntry:
    """One of the best checkpoints.

    Attributes:
        step: the step, N in the directory `step-N`.
        score: the score of the checkpoint.
        metric: the name of the score.
    """

    step: Natural
    score: float
    metric: str


@dataclass(frozen=True)
class KeptAverage:
    """The mean of checkpoints that was better than the best checkpoint at the end of training.

    Attributes:
        step: the last step of `mean_of`, N in the directory `step-N`.
        mean_of: the steps of the averaged checkpoints.
        metric: the name of the score that decided.
        mode: 'max' if higher scores are better, 'min' if lower ones are.
        scores: the scores of its validation, by name.
    """

    step: Natural
    mean_of: list[int]
    metric: str
    mode: str
    scores: dict[str, float]

    @property
    def score(self) -> float:
        """The score of `metric`."""
        return self.scores[self.metric]

    def is_before(self, best_entry: BestEntry) -> bool:
        """Return whether the mean is used instead of the best checkpoint.

        The mean has already won against best checkpoints up to its own step. Against a later one the score decides; of
        equal scores the later step wins. If the later one has another metric, the mean is no longer used.
        """
        if best_entry.step <= self.step:
            return True
        better = self.score > best_entry.score if self.mode == "max" else self.score < best_entry.score
        return best_entry.metric == self.metric and better


@dataclass(frozen=True)
class AverageRecord:
    """The result of averaging at the end of training.

    Attributes:
        compared_step: step of the last checkpoint at the last comparison of a mean.
        compared_last: `checkpoint.average` at that comparison.
        kept: the mean that is kept, perhaps from an earlier end of training; None: no mean is kept.
    """

    compared_step: Natural
    compared_last: Natural
    kept: KeptAverage | None = None


def read_record(directory: Path) -> list[BestEntry]:
    """Return the best checkpoints in a directory, best first; empty without a record.

    Args:
        directory: `best/` of a run.

    Raises:
        CheckpointError: the record is damaged; the message names file and field.
    """
    path = directory / RECORD
    if not path.exists():
        return []
    advice = f"Fix the file, or move {directory} away to start a new record."
    return read_json(path, list[BestEntry], advice, CheckpointError)


def read_average_record(directory: Path) -> AverageRecord | None:
    """Return the result of averaging at the end of training; None before that.

    Args:
        directory: `averaged/` of a run.

    Raises:
        CheckpointError: the record is damaged.
    """
    path = directory / RECORD
    if not path.exists():
        return None
    record = read_json(path, AverageRecord, f"Move {directory} away to average again.", CheckpointError)
    if record.kept is not None and record.kept.metric not in record.kept.scores:
        raise CheckpointError(f"{path}: kept.scores has no {record.kept.metric}. Move {directory} away to average "
                              "again.")
    return record


MADE_FROM, MADE_WITH = "made_from", "made_with"
"""The keys of `settings.yaml` that are not settings."""
INITIAL_WEIGHTS = "initial_weights"
"""The key in `MADE_FROM` of the checksum (`checksum_of_weights`) of the model with whose parameters the run began."""
IMPORTED_MODEL = "imported"
"""The key in `MADE_FROM` of the system and the file of an imported model."""
_VOCABULARY_FILE = re.compile(r"(source|target|source_factor_\d+)\.(model|codes|pieces|words)")


def vocabulary_fingerprint(directory: Path) -> str:
    """Return 32 hexadecimal digits for the vocabulary files in a directory; "" if it has none."""
    digest, has_files = hashlib.sha256(), False
    for file in sorted(directory.iterdir()) if directory.is_dir() else ():
        if _VOCABULARY_FILE.fullmatch(file.name):
            digest.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
            has_files = True
    return digest.hexdigest()[:32] if has_files else ""


def fingerprints(data: TrainingData) -> dict[str, str]:
    """Return the fingerprints of the vocabularies of `data`, and of the data if they have one."""
    with temporary_directory("reading vocabularies") as directory:
        data.copy_vocabularies(directory)
        vocabulary = vocabulary_fingerprint(directory)
    values = {"vocabulary": vocabulary, "data": getattr(data, "fingerprint", None)}
    return {name: value for name, value in values.items() if value}


def validation_fingerprint(sets: Iterable[ValidationSet]) -> str:
    """Return 32 hexadecimal digits for the names and texts of validation sets; "" if there are none."""
    content = [(validation.name, list(validation.source), [list(lines) for lines in validation.references])
               for validation in sets]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32] if content else ""


def provenance(made_from: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return what `settings.yaml` contains in addition to the settings: fingerprints and versions."""
    return {MADE_FROM: made_from, MADE_WITH: versions()}


def versions() -> dict[str, str]:
    """Return the versions of towernmt, TensorFlow, NumPy and Python."""
    return {"towernmt": __version__, "tensorflow": importlib.metadata.version("tensorflow"),
            "numpy": importlib.metadata.version("numpy"), "python": platform.python_version()}


def without_provenance(content: dict[str, Any]) -> dict[str, Any]:
    """Return the settings in the result of `load_yaml`."""
    return {key: value for key, value in content.items() if key.split(".")[0] not in (MADE_FROM, MADE_WITH)}


def recorded_fingerprints(content: dict[str, Any]) -> dict[str, str]:
    """Return the fingerprints in the result of `load_yaml`."""
    return {name: str(content[key]) for name in ("vocabulary", "data") if (key := f"{MADE_FROM}.{name}") in content}


def recorded_initial_weights(content: dict[str, Any]) -> str:
    """Return the checksum of the model with whose parameters a run began; "" if none is recorded.

    Args:
        content: result of `load_yaml`.
    """
    return str(content.get(f"{MADE_FROM}.{INITIAL_WEIGHTS}", ""))


def check_vocabulary_of(checkpoint: OpenCheckpoint, vocabulary: Path) -> None:
    """Refuse a checkpoint that was trained with a different vocabulary, whose ids stand for different words.

    Args:
        checkpoint: the checkpoint.
        vocabulary: the vocabulary directory of the run.

    Raises:
        SettingsError: the vocabularies differ.
        CheckpointError: the `state.json` of the checkpoint is damaged.
    """
    state = checkpoint.state()
    recorded = state.made_from.get("vocabulary") if state is not None else None
    if recorded is not None and recorded != vocabulary_fingerprint(vocabulary):
        raise SettingsError(f"{checkpoint.name} was not trained with the vocabulary in {vocabulary}: restore the "
                            "vocabulary of the run, or choose a checkpoint of this run.")
