"""What a checkpoint's `state.json` holds, read with every field checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towernmt.core.errors import CheckpointError
from towernmt.core.files.json_files import Natural, checked

STATE = "state.json"
FORMAT = 1
"""Of the files that this version writes and reads."""


@dataclass(frozen=True)
class CheckpointState:
    """The content of `state.json`.

    Attributes:
        step: updates that were made.
        position: where in the data to go on; None where none was kept.
        callbacks: what each callback remembers, by its key.
        mean_of: of an averaged checkpoint, the steps of those that it averages.
        grown_from: of a grown run, the checkpoint that it was made from.
        weights: the names of the model's variables, without those that only training needs; None if not known.
        made_from: the fingerprints of the run's vocabulary and data, as far as they are known (`vocabulary`, `data`).
    """

    step: Natural
    position: str | None
    callbacks: dict[str, Any]
    format: int = FORMAT
    weights: list[str] | None = None
    mean_of: list[int] = field(default_factory=list)
    grown_from: str = ""
    made_from: dict[str, str] = field(default_factory=dict)


def read_state(checkpoint: Path) -> CheckpointState:
    """The state of a checkpoint.

    Args:
        checkpoint: its directory, `step-N`.
    Raises:
        CheckpointError: the file is missing, damaged, of another version, or of another step.
    """
    path = checkpoint / STATE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}). {_advice(checkpoint)}") from error
    state = parse_state(content, checkpoint)
    if checkpoint.name != f"step-{state.step}":
        raise CheckpointError(f"{path}: the field `step` holds {state.step}, but the directory is {checkpoint.name}. "
                              f"{_advice(checkpoint)}")
    return state


def parse_state(content: bytes, checkpoint: Path) -> CheckpointState:
    """The state in the content of the file of a checkpoint.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    try:
        value = json.loads(content)     # not `json_files.load`: a callback may remember a score that is no number
        version = value.get("format", FORMAT) if isinstance(value, dict) else FORMAT
        if type(version) is int and version > FORMAT:
            raise CheckpointError(f"{checkpoint / STATE}: of format {version}, but this towernmt reads format "
                                  f"{FORMAT}: use the version that wrote it.")
        return checked(value, CheckpointState)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{checkpoint / STATE}: {error}. {_advice(checkpoint)}") from None


def _advice(checkpoint: Path) -> str:
    return f"Put the file back, or remove {checkpoint} to go on from the checkpoint before it."
