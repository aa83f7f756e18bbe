"""Checkpoints on disk: each is one directory, written completely or not at all, with a checked `state.json`.

`checkpoints/step-120/` contains `model.index` and `model.data-*` (TensorFlow's format, readable by any tensorpack or
TensorFlow program) and `state.json` (data position, state of the callbacks). It is written under a temporary name,
flushed to disk and renamed, so that a process killed at any moment leaves only complete checkpoints. TensorFlow's file
`checkpoint` in the same directory names the last one.

The checksum and every field of `state.json` are checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.errors import CheckpointError, DataError, remedy
from towernmt.core.files import flush_to_disk, sha256_of, write_text
from towernmt.core.structured_files import Natural, typed_value
from towernmt.core.tensors import Session
from towernmt.dataflow.batches.batch import Position

log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d+)$")
_UNFINISHED = ".writing-"
_REMOVED = ".removing-"


class UnwrittenCheckpointError(CheckpointError):
    """A checkpoint cannot be written.

    Attributes:
        reason: the reason, without the path and the advice of the message.
    """

    reason = ""


def checkpoint_steps(directory: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a directory, in ascending order."""
    if not directory.is_dir():
        return []
    matches = (_NAME.match(entry.name) for entry in directory.iterdir() if (entry / STATE).is_file())
    return sorted(int(match.group(1)) for match in matches if match)


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step, which need not exist."""
    return directory / f"step-{step}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's directory."""
    return int(checkpoint.name.removeprefix("step-"))


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the checkpoint to resume from, or None."""
    steps = checkpoint_steps(directory)
    return checkpoint_path(directory, steps[-1]) if steps else None


def checksum_of_weights(prefix: str) -> str:
    """Return the SHA-256 of the index of a checkpoint, which has the checksums of the weights; hexadecimal.

    "" if the index cannot be read.

    Args:
        prefix: the prefix of TensorFlow's files, such as "runs/de-en/checkpoints/step-1000/model".
    """
    return sha256_of(Path(f"{prefix}.index"))


def write_checkpoint(saver: Any, session: Session, directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write one checkpoint atomically.

    Args:
        saver: a `tf1.train.Saver`.
        session: the session with the variables.
        directory: the directory of the checkpoint `step-N`.
        step: the number N.
        state: values that JSON can represent, the content of `state.json`.

    Raises:
        UnwrittenCheckpointError: the disk is full or the directory cannot be written; earlier checkpoints are
            unchanged.
    """
    from towernmt.core.tf_compat import tf  # the import takes seconds, and listing checkpoints does not need it

    final, unfinished = checkpoint_path(directory, step), directory / f"{_UNFINISHED}step-{step}"
    replaced = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        saver.save(session, str(unfinished / "model"), write_meta_graph=False, write_state=False)
        (unfinished / STATE).write_bytes(state_text(state).encode())
        for entry in (*unfinished.iterdir(), unfinished):
            flush_to_disk(entry)
        if final.exists():
            replaced = _hide(final)
        unfinished.rename(final)
        flush_to_disk(directory)
    except (OSError, tf.errors.OpError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise _not_written(final, error) from error
    if replaced is not None:
        _delete(replaced)
    point_at(directory, checkpoint_steps(directory))
    return final


def write_values(values: Mapping[str, np.ndarray], directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of values by variable name; see `write_checkpoint`."""
    from towernmt.core.tf_compat import tf, tf1

    config = tf1.ConfigProto(device_count={"GPU": 0})       # leave the GPU memory to other processes
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        return write_checkpoint(_Values(values), session, directory, step, state)


class _Values:
    """Values by name, which are written as a `tf1.train.Saver` writes variables."""

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self._values = values

    def save(self, session: Session, prefix: str, **_: Any) -> None:
        """Write the values into TensorFlow's files at `prefix`."""
        from towernmt.core.tf_compat import tf, tf1

        tensors = [tf1.placeholder(value.dtype, value.shape) for value in self._values.values()]
        write = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(self._values),
                                  shape_and_slices=[""] * len(tensors), tensors=tensors)
        session.run(write, dict(zip(tensors, self._values.values(), strict=True)))


def point_at(directory: Path, steps: Sequence[int]) -> None:
    """Replace TensorFlow's file `checkpoint`, by which `tf.train.latest_checkpoint` and tensorpack find checkpoints.

    Args:
        directory: the directory of the checkpoints.
        steps: steps of the checkpoints to list; `latest_checkpoint` returns the last one.

    Raises:
        CheckpointError: the file cannot be written.
    """
    paths = [f'"step-{step}/model"' for step in steps]
    lines = [f"model_checkpoint_path: {paths[-1]}", *(f"all_model_checkpoint_paths: {path}" for path in paths)]
    try:
        write_text(directory / "checkpoint", "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise _not_written(directory / "checkpoint", error) from error


def write_state(directory: Path, step: int, state: dict[str, Any]) -> None:
    """Replace the `state.json` of a checkpoint atomically.

    Raises:
        CheckpointError: the file cannot be written; the old one is unchanged.
    """
    final = checkpoint_path(directory, step)
    try:
        write_text(final / STATE, state_text(state))
    except OSError as error:
        raise _not_written(final, error) from error


def set_aside(directory: Path) -> Path:
    """Rename a directory of checkpoints to the first free `NAME.N` instead of removing it, and return its path."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    return directory.rename(aside)


def keep_last(directory: Path, count: int) -> None:
    """Keep the last `count` checkpoints, and remove older ones and incomplete ones of killed processes.

    A checkpoint that cannot be removed, for example because NFS keeps its open files, is logged, and removed later.

    Raises:
        CheckpointError: TensorFlow's file `checkpoint` cannot be written.
    """
    steps = checkpoint_steps(directory)
    if steps[:-count]:
        point_at(directory, steps[-count:])
    for step in steps[:-count]:
        checkpoint = checkpoint_path(directory, step)
        try:
            _hide(checkpoint)
        except OSError as error:
            _warn_of_rest(checkpoint, error)
    remove_unfinished(directory)


def remove_unfinished(directory: Path) -> None:
    """Delete directories of processes that were killed while they wrote or removed a checkpoint."""
    for prefix in (_UNFINISHED, _REMOVED):
        for entry in directory.glob(f"{prefix}*"):
            _delete(entry)


def _hide(checkpoint: Path) -> Path:
    """Rename a checkpoint so that `remove_unfinished` deletes it, and return its new path.

    After that, a killed process leaves no incomplete checkpoint under the old name.
    """
    hidden = checkpoint.with_name(_REMOVED + checkpoint.name)
    shutil.rmtree(hidden, ignore_errors=True)
    return checkpoint.rename(hidden)


def _delete(hidden: Path) -> None:
    """Delete the directory of a removed or incomplete checkpoint; log it if that fails."""
    try:
        shutil.rmtree(hidden)
    except OSError as error:
        _warn_of_rest(hidden, error)


def _warn_of_rest(directory: Path, error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):    # another process has removed it
        log.warning("%s could not be removed (%s), and takes disk space until a later checkpoint removes it.",
                    directory, error.strerror)


def _not_written(checkpoint: Path, error: Exception) -> UnwrittenCheckpointError:
    reason = reason_of(error, checkpoint.parent)
    unwritten = UnwrittenCheckpointError(
        f"{checkpoint}: the checkpoint could not be written ({reason}). Free disk space or make the directory "
        "writable, and run the same command again; a training resumes from its last checkpoint.")
    unwritten.reason = reason
    return unwritten


def reason_of(error: Exception, path: Path) -> str:
    """Return the reason of an error, for TensorFlow the line of its message that names the file or the cause."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    naming_lines = [line for line in lines if str(path) in line]
    below_node = [below for above, below in pairwise(lines) if above.startswith("Node: ")]
    return (naming_lines or below_node or lines)[0].split("; ")[-1][:200]


STATE = "state.json"
FORMAT = 1
"""The format of `state.json` that this version writes and reads."""
CHECKSUM = "checksum"
"""The field with the SHA-256 of the other fields."""


@dataclass(frozen=True)
class CheckpointState:
    """The content of `state.json`.

    Attributes:
        step: number of updates.
        position: data position after the last batch that was trained on; None if it was not saved.
        callbacks: the state of each callback, by its key.
        mean_of: the steps of the averaged checkpoints, if this is an average.
        grown_from: the checkpoint that a grown run was made from.
        weights: the names of the model's variables, without those that only training needs; None if not known.
        made_from: the known fingerprints of the run's inputs (`vocabulary`, `data`).
        position_settings: the settings that `position` depends on, by name; empty if not known.
    """

    step: Natural
    position: str | None
    callbacks: dict[str, Any]
    format: int = FORMAT
    weights: list[str] | None = None
    mean_of: list[int] = field(default_factory=list)
    grown_from: str = ""
    made_from: dict[str, str] = field(default_factory=dict)
    position_settings: dict[str, Any] = field(default_factory=dict)

    @property
    def in_epoch(self) -> bool:
        """Whether the position is inside an epoch, so that it depends on `position_settings`."""
        try:
            return self.position is not None and not Position.from_json(self.position).begins_epoch
        except DataError:       # the position of another kind of input
            return True

    def changes(self, settings: Mapping[str, Any]) -> str:
        """Return the differences of `position_settings` from `settings`, as `NAME changed from OLD to NEW, ...`."""
        current = json.loads(json.dumps(settings))      # tuples become lists, as in the file
        return ", ".join(f"{name} changed from {_as_text(saved)} to {_as_text(current[name])}"
                         for name, saved in self.position_settings.items()
                         if name in current and current[name] != saved)


def read_state(checkpoint: Path) -> CheckpointState:
    """Return the state of a checkpoint.

    Args:
        checkpoint: its directory, `step-N`.

    Raises:
        CheckpointError: the file is missing, damaged, of another version, or of another step.
    """
    path = checkpoint / STATE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}). "
                              f"{remedy(error, _advice(checkpoint))}") from error
    state = parse_state(content, checkpoint)
    if checkpoint.name != f"step-{state.step}":
        raise CheckpointError(f"{path}: the field `step` holds {state.step}, but the directory is {checkpoint.name}. "
                              f"{_advice(checkpoint)}")
    return state


def state_text(state: Mapping[str, Any]) -> str:
    """Return the content of `state.json` for the fields of `state`, with the format and the checksum added."""
    content = {"format": FORMAT, **state}
    content.pop(CHECKSUM, None)
    digest = hashlib.sha256(json.dumps(content, indent=1).encode()).hexdigest()
    return json.dumps({CHECKSUM: digest, **content}, indent=1)


def parse_state(content: bytes, checkpoint: Path) -> CheckpointState:
    """Parse the content of the `state.json` of a checkpoint.

    Raises:
        CheckpointError: the content is damaged, was changed, or is of another version.
    """
    try:
        value = json.loads(content)     # `structured_files.load_json` refuses NaN, which a score may be
        if isinstance(value, dict):
            version = value.get("format")
            if type(version) is int and version > FORMAT:
                raise CheckpointError(f"{checkpoint / STATE} has format {version}, but this version of towernmt reads "
                                      f"format {FORMAT}: use the version that wrote the file.")
            # Equal fields give equal bytes, so this detects a change of any byte, of the checksum too.
            if content != state_text(value).encode():
                raise CheckpointError(f"{checkpoint / STATE}: the file has changed since it was written (its checksum "
                                      f"does not match). {_advice(checkpoint)}")
            del value[CHECKSUM]
        return typed_value(value, CheckpointState)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{checkpoint / STATE}: {error}. {_advice(checkpoint)}") from None


def check_position_settings(state: CheckpointState, checkpoint: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to resume inside an epoch if a setting that the data position depends on has changed.

    Args:
        state: state of the checkpoint.
        checkpoint: its directory, `RUN/checkpoints/step-N`.
        settings: the settings with which the run would resume, by name.

    Raises:
        CheckpointError: the message names the changed settings.
    """
    if state.in_epoch and (changes := state.changes(settings)):
        raise CheckpointError(f"{changes}, but the data position in {checkpoint / STATE} depends on it: restore the "
                              "old value to resume, or train with the new value in another --logdir that starts from "
                              f"the parameters of this run (--set init.checkpoint={checkpoint.parent.parent}).")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _advice(checkpoint: Path) -> str:
    return f"Restore the file, or remove {checkpoint} to resume from the previous checkpoint."
