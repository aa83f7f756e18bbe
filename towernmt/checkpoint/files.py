"""Checkpoints on disk: one directory each, complete or not there.

`checkpoints/step-120/` holds `model.index` and `model.data-*` (TensorFlow's own format, readable by any
tensorpack or TensorFlow program) and `state.json` (data position, memory of the callbacks). It is written
under another name, flushed to the disk and renamed, so that a process killed at any moment leaves only
complete checkpoints. TensorFlow's file `checkpoint` in the same directory names the last one.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.checkpoint.state import STATE
from towernmt.core.errors import CheckpointError
from towernmt.core.files.atomic_files import flush_to_disk, write_text
from towernmt.core.tensors import Session

_NAME = re.compile(r"step-(\d+)$")
_UNFINISHED = ".writing-"
_REMOVED = ".removing-"


def checkpoint_steps(directory: Path) -> list[int]:
    """The steps of the complete checkpoints in a directory, ascending."""
    if not directory.is_dir():
        return []
    found = (_NAME.match(entry.name) for entry in directory.iterdir() if (entry / STATE).is_file())
    return sorted(int(match.group(1)) for match in found if match)


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return directory / f"step-{step}"


def latest_checkpoint(directory: Path) -> Path | None:
    """The checkpoint to resume from, or None."""
    steps = checkpoint_steps(directory)
    return checkpoint_path(directory, steps[-1]) if steps else None


def write_checkpoint(saver: Any, session: Session, directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write one checkpoint atomically.

    Args:
        saver: a `tf1.train.Saver`.
        state: JSON-able, becomes `state.json`.
    Raises:
        CheckpointError: the disk is full or the directory cannot be written; earlier checkpoints are
            untouched.
    """
    from towernmt.core.tf_compat import tf  # takes seconds, which lists of names do not need

    final, unfinished = checkpoint_path(directory, step), directory / f"{_UNFINISHED}step-{step}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        saver.save(session, str(unfinished / "model"), write_meta_graph=False, write_state=False)
        (unfinished / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        for entry in (*unfinished.iterdir(), unfinished):
            flush_to_disk(entry)
        if final.exists():
            _remove(final)
        unfinished.rename(final)
        flush_to_disk(directory)
    except (OSError, tf.errors.OpError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise _not_written(final, error) from error
    point_at(directory, checkpoint_steps(directory))
    return final


def write_values(values: Mapping[str, np.ndarray], directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of values by the names of variables; see `write_checkpoint`."""
    from towernmt.core.tf_compat import tf, tf1

    config = tf1.ConfigProto(device_count={"GPU": 0})       # whose memory is for others
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        return write_checkpoint(_Values(values), session, directory, step, state)


class _Values:
    """Values by name, to be written as a `tf1.train.Saver` writes variables."""

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self._values = values

    def save(self, session: Session, prefix: str, **_: Any) -> None:
        """Write TensorFlow's files."""
        from towernmt.core.tf_compat import tf, tf1

        tensors = [tf1.placeholder(value.dtype, value.shape) for value in self._values.values()]
        write = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(self._values),
                                  shape_and_slices=[""] * len(tensors), tensors=tensors)
        session.run(write, dict(zip(tensors, self._values.values(), strict=True)))


def point_at(directory: Path, steps: Sequence[int]) -> None:
    """Replace TensorFlow's file `checkpoint`, by which `tf.train.latest_checkpoint` and tensorpack find checkpoints.

    Args:
        steps: of the checkpoints that it lists; the last is the one that is found.
    Raises:
        CheckpointError: it cannot be written.
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
        CheckpointError: it cannot be written; the old one is untouched.
    """
    final = checkpoint_path(directory, step)
    try:
        write_text(final / STATE, json.dumps(state, indent=1))
    except OSError as error:
        raise _not_written(final, error) from error


def set_aside(directory: Path) -> Path:
    """Rename a directory of checkpoints that are not ours to remove; returns its new name, `NAME.1` or the next."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    return directory.rename(aside)


def keep_last(directory: Path, count: int) -> None:
    """Remove all but the last `count` checkpoints, and what a killed process left unfinished."""
    steps = checkpoint_steps(directory)
    if steps[:-count]:
        point_at(directory, steps[-count:])
    for step in steps[:-count]:
        _remove(checkpoint_path(directory, step))
    remove_unfinished(directory)


def remove_unfinished(directory: Path) -> None:
    """Remove what a process that was killed while writing or removing left behind."""
    for prefix in (_UNFINISHED, _REMOVED):
        for entry in directory.glob(f"{prefix}*"):
            shutil.rmtree(entry)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; a process killed meanwhile leaves no half of it under its name."""
    doomed = checkpoint.with_name(_REMOVED + checkpoint.name)
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def _not_written(checkpoint: Path, error: Exception) -> CheckpointError:
    reason = reason_of(error, checkpoint.parent)
    return CheckpointError(f"{checkpoint}: the checkpoint could not be written ({reason}); free some space "
                           "or make the directory writable, and start the same command to go on from the "
                           "last one.")


def reason_of(error: Exception, place: Path) -> str:
    """Why: of TensorFlow's many lines, the one that names the file, or else the one below the failed node's name."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    named = [line for line in lines if str(place) in line]
    below_node = [below for above, below in pairwise(lines) if above.startswith("Node: ")]
    return (named or below_node or lines)[0].split("; ")[-1][:200]
