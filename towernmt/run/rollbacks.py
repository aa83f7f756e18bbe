"""Return to the last good checkpoint after a divergence, and train from there with a lower learning rate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tensorpack.utils import logger

from towernmt.checkpoint.checkpoint_files import latest_checkpoint
from towernmt.core.errors import CheckpointError, DivergenceError, SettingsError
from towernmt.core.files import write_text
from towernmt.core.structured_files import Between, Natural, read_json
from towernmt.core.world import current_world
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import Settings

RECORD = "rollbacks.json"


@dataclass(frozen=True)
class Rollbacks:
    """Contents of `rollbacks.json`: the rollbacks of a run in all processes that trained it.

    Attributes:
        factor: every learning rate of the settings is multiplied by it.
        rollbacks: number of rollbacks.
    """

    factor: Annotated[float, Between(0, 1)] = 1.0
    rollbacks: Natural = 0


def with_rollbacks(settings: Settings, run: RunDirectory, attempt: Callable[[Settings], int]) -> int:
    """Train; after a divergence, resume from the last checkpoint if `recovery.on_divergence=rollback`.

    Diverged parameters are never saved, so the last checkpoint is valid. The saved settings keep the specified learning
    rates. The factor that lowers them is recorded in `rollbacks.json`, so that every resumed run has lower rates.

    Args:
        settings: settings of the run.
        run: directory of the run.
        attempt: trains with the settings that it receives, from the last checkpoint if the run has one.

    Returns:
        The result of `attempt`, or 128 + the number of a signal that arrived in the diverging step.

    Raises:
        DivergenceError: divergence after `recovery.rollbacks` rollbacks, or before the first checkpoint.
        SettingsError: `recovery.rollback_rate` is not between 0 and 1.
        CheckpointError: the record of rollbacks is damaged.
    """
    if not 0.0 < settings.recovery.rollback_rate < 1.0:
        raise SettingsError(f"recovery.rollback_rate={settings.recovery.rollback_rate} must be between 0 and 1.")
    rollbacks = recorded_rollbacks(run)
    if latest_checkpoint(run.checkpoints) is None and current_world().is_chief:
        _record_file(run).unlink(missing_ok=True)       # of a previous run in this directory
    elif rollbacks.rollbacks:
        lowered = with_lower_rate(settings, rollbacks.factor).optimizer.learning_rate
        logger.info(f"Rollbacks so far: {rollbacks.rollbacks}. Training resumes with "
                    f"optimizer.learning_rate={lowered:.6g}, {rollbacks.factor:g} times that of the settings "
                    f"({_record_file(run)}).")
    while True:
        try:
            return attempt(with_lower_rate(settings, rollbacks.factor))
        except DivergenceError as error:
            rollbacks = _record_rollback(rollbacks, settings, run, error)
            if received := current_world().agree(error.signal or 0):
                logger.info("A signal to stop was received: the next start resumes from that checkpoint.")
                return 128 + received


def recorded_rollbacks(run: RunDirectory) -> Rollbacks:
    """Return the rollbacks of a run; none if it has no checkpoint.

    Raises:
        CheckpointError: the record is damaged.
    """
    if latest_checkpoint(run.checkpoints) is None or not _record_file(run).exists():
        return Rollbacks()
    return read_json(_record_file(run), Rollbacks,
                     "Fix it, or remove it to resume with the learning rate of the settings.", CheckpointError)


def with_lower_rate(settings: Settings, factor: float) -> Settings:
    """Return the settings with every learning rate multiplied by `factor`, including those of the schedule."""
    optimizer = dataclasses.replace(settings.optimizer, learning_rate=settings.optimizer.learning_rate * factor)
    schedule = dataclasses.replace(
        settings.schedule, end_learning_rate=settings.schedule.end_learning_rate * factor,
        values=[value * factor for value in settings.schedule.values])
    return dataclasses.replace(settings, optimizer=optimizer, schedule=schedule)


def _record_rollback(previous: Rollbacks, settings: Settings, run: RunDirectory, error: DivergenceError) -> Rollbacks:
    """Write the record with another rollback, before training resumes.

    Raises:
        DivergenceError: `error`, because the settings allow no rollback or the run has no checkpoint.
    """
    recovery, checkpoint = settings.recovery, latest_checkpoint(run.checkpoints)
    if current_world().agree(recovery.on_divergence != "rollback" or checkpoint is None):
        raise error
    if previous.rollbacks >= recovery.rollbacks:
        raise DivergenceError(f"{error} (Rollbacks made: {previous.rollbacks}; recovery.rollbacks={recovery.rollbacks} "
                              "allows no more.)") from error
    rollbacks = Rollbacks(previous.factor * recovery.rollback_rate, previous.rollbacks + 1)
    if current_world().is_chief:
        write_text(_record_file(run), json.dumps(dataclasses.asdict(rollbacks)) + "\n")
    lowered = with_lower_rate(settings, rollbacks.factor).optimizer.learning_rate
    logger.warning(f"{error}")
    logger.warning(f"Rollback {rollbacks.rollbacks} of {recovery.rollbacks}: resuming from {checkpoint} with "
                   f"optimizer.learning_rate={lowered:.6g}.")
    return rollbacks


def _record_file(run: RunDirectory) -> Path:
    return run.path / RECORD
