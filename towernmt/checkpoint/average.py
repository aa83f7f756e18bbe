"""Averaging checkpoints: one whose weights are the means of several (Junczys-Dowmunt et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from towernmt.checkpoint.best_record import read_record
from towernmt.checkpoint.files import checkpoint_path, checkpoint_steps, write_values
from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.output_place import check_average_output
from towernmt.checkpoint.provenance import MADE_FROM, check_vocabulary_of, vocabulary_fingerprint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import refuse_unknown, weights_of_model
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.optim.ema import SUFFIX

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel


def last_checkpoints(run: SavedRun, count: int) -> list[Path]:
    """The last `count` checkpoints of a run.

    Raises:
        SettingsError: `count` is below 1.
        CheckpointError: it does not have so many.
    """
    steps = checkpoint_steps(run.checkpoints)
    _enough(run, "checkpoints", "checkpoint.keep", count, len(steps))
    return [checkpoint_path(run.checkpoints, step) for step in steps[-count:]]


def best_checkpoints(run: SavedRun, count: int) -> list[Path]:
    """The best `count` checkpoints of a run by validation, the best first.

    Raises:
        SettingsError: `count` is below 1.
        CheckpointError: it does not have so many.
    """
    entries = read_record(run.best)
    _enough(run, "best checkpoints", "checkpoint.keep_best", count, len(entries))
    return [checkpoint_path(run.best, entry.step) for entry in entries[:count]]


def checkpoints_between(run: SavedRun, first: int, last: int) -> list[Path]:
    """The checkpoints of a run from step `first` to step `last`, those by validation among them.

    Raises:
        CheckpointError: there are none.
    """
    found = {step: checkpoint_path(place, step) for place in (run.best, run.checkpoints)
             for step in checkpoint_steps(place) if first <= step <= last}
    if not found:
        have = sorted({*checkpoint_steps(run.checkpoints), *checkpoint_steps(run.best)})
        raise CheckpointError(f"{run.path}: no checkpoint from step {first} to step {last}; it has "
                              f"{', '.join(map(str, have)) or 'none yet: train first'}.")
    return [found[step] for step in sorted(found)]


def _enough(run: SavedRun, what: str, setting: str, count: int, found: int) -> None:
    if count < 1:
        raise SettingsError(f"{count} {what} cannot be averaged: ask for 1 or more.")
    if found < count:
        raise CheckpointError(f"{run.path} has {found} {what}, fewer than {count}: ask for those, or train with a "
                              f"larger {setting}.")


def average_checkpoints(run: SavedRun, checkpoints: Sequence[Path], output: Path,
                        model: NMTModel | None = None) -> Path:
    """Write a checkpoint with the mean weights of several.

    It holds what translating needs, the weights (and their moving averages where all have them), and no
    optimizer's slots. It is named after the last step among them.

    Args:
        run: whose model it is.
        checkpoints: directories `step-N`; each is read a variable at a time.
        output: the directory in which `step-N` is written.
        model: of the run, where the run does not hold its code.
    Returns:
        the new checkpoint, for `--checkpoint` of `towernmt translate`.
    Raises:
        SettingsError: a step of a run would be replaced, or prepared data; or a vocabulary is not the run's.
        CheckpointError: one is unreadable, lacks a weight or has one that the model lacks, or the new one cannot be
            written.
    """
    steps = [int(place.name.removeprefix("step-")) for place in checkpoints]
    check_average_output(output, max(steps))
    held = [HeldCheckpoint(place / "model") for place in checkpoints]
    run.check_vocabulary()
    for one in held:
        check_vocabulary_of(one, run.vocabulary)
    shapes = [one.shapes() for one in held]
    values: dict[str, np.ndarray] = {}
    weights = weights_of_model(run.load_model(model))
    for one in held:
        refuse_unknown(one, weights, "average checkpoints of one model.")
    for name in weights:
        for full in (name, name + SUFFIX):
            if full == name or all(full in shape for shape in shapes):
                values[full] = _mean(held, full)
    state: dict[str, Any] = {"format": 1, "step": max(steps), "position": None, "callbacks": {},
                             "mean_of": sorted(steps), WEIGHTS: sorted(weights),
                             MADE_FROM: {"vocabulary": vocabulary_fingerprint(run.vocabulary)}}
    with DirectoryLock(output, "towernmt average"):
        return write_values(values, output, max(steps), state)


def _mean(checkpoints: Sequence[HeldCheckpoint], name: str) -> np.ndarray:
    """The mean over the checkpoints, summed in float64; of whole numbers the last one's."""
    last = checkpoints[-1].value(name)
    if not np.issubdtype(last.dtype, np.floating):
        return last
    total = np.zeros(last.shape, np.float64)
    for checkpoint in checkpoints:
        total += checkpoint.value(name)
    return np.asarray(total / len(checkpoints)).astype(last.dtype)
