"""Divergence that does not end the run: back to the last good checkpoint, and on with a lower learning rate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tensorpack.utils import logger

from towernmt.checkpoint.files import latest_checkpoint
from towernmt.core.errors import CheckpointError, DivergenceError, SettingsError
from towernmt.core.files.atomic_files import write_text
from towernmt.core.files.json_files import Between, Natural, read_json
from towernmt.core.world import present_world
from towernmt.run.directory import RunDirectory
from towernmt.run.settings import Settings

RECORD = "rollbacks.json"


@dataclass(frozen=True)
class Rollbacks:
    """What `rollbacks.json` holds: what became of the learning rate in all processes that trained the run.

    Attributes:
        factor: what every rate of the settings is multiplied by.
        rollbacks: how many were made.
    """

    factor: Annotated[float, Between(0, 1)] = 1.0
    rollbacks: Natural = 0


def with_rollbacks(settings: Settings, run: RunDirectory, attempt: Callable[[Settings], int]) -> int:
    """Train, and where `recovery.on_divergence=rollback` says so, again from the last checkpoint after a divergence.

    Nothing that diverged is ever saved, so the last checkpoint is a good one, and going on from it is what a resumed
    run does. What the rates are lowered by is recorded beside the run's settings, which keep the rates that the user
    gives: whoever goes on with the run, with whatever rates, goes on with lower ones.

    Args:
        attempt: trains with the settings that it is given, from the last checkpoint if there is one.
    Returns:
        what `attempt` returns; 128 + the number of a signal that came in the step that diverged.
    Raises:
        DivergenceError: once more after `recovery.rollbacks` rollbacks, or before there was a checkpoint.
        SettingsError: `recovery.rollback_rate` is not between 0 and 1.
        CheckpointError: the record of former rollbacks is damaged.
    """
    if not 0.0 < settings.recovery.rollback_rate < 1.0:
        raise SettingsError(f"recovery.rollback_rate={settings.recovery.rollback_rate} must be between 0 and 1.")
    made = recorded_rollbacks(run)
    if latest_checkpoint(run.checkpoints) is None and present_world().is_chief:
        _place(run).unlink(missing_ok=True)     # of another run, which was here before
    elif made.rollbacks:
        lowered = with_lower_rate(settings, made.factor).optimizer.learning_rate
        logger.info(f"Rollbacks so far: {made.rollbacks}. Training goes on with optimizer.learning_rate={lowered:.6g}, "
                    f"{made.factor:g} times that of the settings ({_place(run)}).")
    while True:
        try:
            return attempt(with_lower_rate(settings, made.factor))
        except DivergenceError as error:
            made = _one_more(made, settings, run, error)
            if present_world().agree(error.signal is not None):
                logger.info("A signal to stop was received: the next start goes on from there.")
                return 128 + error.signal if error.signal is not None else 0


def recorded_rollbacks(run: RunDirectory) -> Rollbacks:
    """The rollbacks that were made in a run; none where it has no checkpoint.

    Raises:
        CheckpointError: the record is damaged.
    """
    if latest_checkpoint(run.checkpoints) is None or not _place(run).exists():
        return Rollbacks()
    return read_json(_place(run), Rollbacks, "Mend it, or remove it to go on with the learning rate of the settings.",
                     CheckpointError)


def with_lower_rate(settings: Settings, factor: float) -> Settings:
    """The settings with every learning rate multiplied by `factor`, those of the schedule as well."""
    optimizer = dataclasses.replace(settings.optimizer, learning_rate=settings.optimizer.learning_rate * factor)
    schedule = dataclasses.replace(
        settings.schedule, end_learning_rate=settings.schedule.end_learning_rate * factor,
        values=[value * factor for value in settings.schedule.values])
    return dataclasses.replace(settings, optimizer=optimizer, schedule=schedule)


def _one_more(made: Rollbacks, settings: Settings, run: RunDirectory, error: DivergenceError) -> Rollbacks:
    """The record with a further rollback, written before anything is trained with it.

    Raises:
        DivergenceError: `error`, where the settings allow no rollback, or the run has nothing to go back to.
    """
    recovery, checkpoint = settings.recovery, latest_checkpoint(run.checkpoints)
    if present_world().agree(recovery.on_divergence != "rollback" or checkpoint is None):
        raise error
    if made.rollbacks >= recovery.rollbacks:
        raise DivergenceError(f"{error} (Rollbacks made: {made.rollbacks}; recovery.rollbacks={recovery.rollbacks} "
                              "allows no more.)") from error
    made = Rollbacks(made.factor * recovery.rollback_rate, made.rollbacks + 1)
    if present_world().is_chief:
        write_text(_place(run), json.dumps(dataclasses.asdict(made)) + "\n")
    lowered = with_lower_rate(settings, made.factor).optimizer.learning_rate
    logger.warning(f"{error}")
    logger.warning(f"Rollback {made.rollbacks} of {recovery.rollbacks}: going on from {checkpoint} with "
                   f"optimizer.learning_rate={lowered:.6g}.")
    return made


def _place(run: RunDirectory) -> Path:
    return run.path / RECORD
