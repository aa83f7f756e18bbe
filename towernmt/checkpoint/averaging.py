"""Average the weights of several checkpoints (Junczys-Dowmunt et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from towernmt.checkpoint.checkpoint_files import checkpoint_path, checkpoint_steps, step_of, write_values
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.records import MADE_FROM, check_vocabulary_of, read_record, vocabulary_fingerprint
from towernmt.checkpoint.saved_run import SavedRun, check_average_output
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import refuse_unknown, weights_of_checkpoint, weights_of_model
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.optim.optimizer import AVERAGE_SUFFIX

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel


def last_checkpoints(run: SavedRun, count: int) -> list[Path]:
    """Return the last `count` checkpoints of a run, without the parameters with which training began.

    Raises:
        SettingsError: `count` is below 1.
        CheckpointError: the run has fewer checkpoints.
    """
    all_steps = checkpoint_steps(run.checkpoints)
    steps = [step for step in all_steps if step > 0] or all_steps
    _check_count(run, "checkpoints", "checkpoint.keep", count, len(steps))
    return [checkpoint_path(run.checkpoints, step) for step in steps[-count:]]


def best_checkpoints(run: SavedRun, count: int) -> list[Path]:
    """Return the best `count` checkpoints of a run by validation, best first.

    Raises:
        SettingsError: `count` is below 1.
        CheckpointError: the run has fewer best checkpoints.
    """
    entries = read_record(run.best)
    _check_count(run, "best checkpoints", "checkpoint.keep_best", count, len(entries))
    return [checkpoint_path(run.best, entry.step) for entry in entries[:count]]


def checkpoints_between(run: SavedRun, first: int, last: int) -> list[Path]:
    """Return the checkpoints of a run from step `first` to step `last`, including the best ones.

    Raises:
        CheckpointError: the range is empty.
    """
    paths = {step: checkpoint_path(directory, step) for directory in (run.best, run.checkpoints)
             for step in checkpoint_steps(directory) if first <= step <= last}
    if not paths:
        available_steps = sorted({*checkpoint_steps(run.checkpoints), *checkpoint_steps(run.best)})
        raise CheckpointError(f"{run.path}: no checkpoint from step {first} to step {last}; it has "
                              f"{', '.join(map(str, available_steps)) or 'none yet: train first'}.")
    return [paths[step] for step in sorted(paths)]


def _check_count(run: SavedRun, plural: str, setting: str, count: int, available: int) -> None:
    if count < 1:
        raise SettingsError(f"{count} {plural} cannot be averaged: request 1 or more.")
    if available < count:
        raise CheckpointError(f"{run.path} has {available} {plural}, fewer than {count}: request {available}, or train "
                              f"with a larger {setting}.")


def average_checkpoints(run: SavedRun, checkpoints: Sequence[Path], output: Path,
                        model: NMTModel | None = None) -> Path:
    """Write a checkpoint with the mean weights of several checkpoints.

    It contains the weights, and their moving averages if all checkpoints have them, but no optimizer slots. Weights
    that only training uses are averaged too if all checkpoints have them, so that another run can start from the
    result. The new checkpoint is named after the last step.

    Args:
        run: the run of the checkpoints.
        checkpoints: directories `step-N`. They are read one variable at a time.
        output: the directory in which `step-N` is written.
        model: the model of the run, if the run does not contain its code.

    Returns:
        the new checkpoint, for `--checkpoint` of `towernmt translate`.

    Raises:
        SettingsError: a step of a run or prepared data would be overwritten, or a vocabulary is not that of the run.
        CheckpointError: a checkpoint is unreadable, lacks a weight or has a weight that the model lacks, or the new
            checkpoint cannot be written.
    """
    steps = [step_of(path) for path in checkpoints]
    check_average_output(output, max(steps))
    open_checkpoints = [OpenCheckpoint(path / "model") for path in checkpoints]
    run.check_vocabulary()
    for checkpoint in open_checkpoints:
        check_vocabulary_of(checkpoint, run.vocabulary)
    shapes = [checkpoint.shapes() for checkpoint in open_checkpoints]
    values: dict[str, np.ndarray] = {}
    model = run.load_model(model)
    required_names = weights_of_model(model)
    for checkpoint in open_checkpoints:
        refuse_unknown(checkpoint, required_names, "average checkpoints of one model.", model=model)
    in_all = set.intersection(*(set(weights_of_checkpoint(checkpoint)) for checkpoint in open_checkpoints))
    weights = [*required_names, *sorted(in_all - set(required_names))]
    for name in weights:
        for variable_name in (name, name + AVERAGE_SUFFIX):
            if variable_name == name or all(variable_name in shape for shape in shapes):
                values[variable_name] = mean_value(open_checkpoints, variable_name)
    state: dict[str, Any] = {"step": max(steps), "position": None, "callbacks": {},
                             "mean_of": sorted(steps), WEIGHTS: sorted(weights),
                             MADE_FROM: {"vocabulary": vocabulary_fingerprint(run.vocabulary)}}
    with DirectoryLock(output, "towernmt average"):
        return write_values(values, output, max(steps), state)


def mean_value(checkpoints: Sequence[OpenCheckpoint], name: str) -> np.ndarray:
    """Return the mean of a variable over checkpoints, summed in float64, with the dtype and shape of the variable.

    The value of integers, booleans and text is that of the last checkpoint.
    """
    last = checkpoints[-1].value(name)
    if "float" not in last.dtype.name:      # bfloat16 is not a subtype of `np.floating`
        return last
    total = np.zeros(last.shape, np.float64)
    for checkpoint in checkpoints:
        total += checkpoint.value(name).astype(np.float64)
    return np.asarray(total / len(checkpoints)).astype(last.dtype)
