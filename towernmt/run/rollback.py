"""Divergence that does not end the run: back to the last good checkpoint, and on with a lower learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tensorpack.utils import logger

from towernmt.checkpoint.files import latest_checkpoint
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.world import present_world
from towernmt.run.directory import RunDirectory
from towernmt.run.settings import Settings


def with_rollbacks(settings: Settings, run: RunDirectory, attempt: Callable[[Settings], int]) -> int:
    """Train, and where `recovery.on_divergence=rollback` says so, again from the last checkpoint after a divergence.

    Nothing that diverged is ever saved, so the last checkpoint is a good one, and going on from it is what a resumed
    run does. The lower rate is saved with the run's settings.

    Args:
        attempt: trains with the settings that it is given, from the last checkpoint if there is one.
    Returns:
        what `attempt` returns.
    Raises:
        DivergenceError: once more after `recovery.rollbacks` rollbacks, or before there was a checkpoint.
        SettingsError: `recovery.rollback_rate` is not between 0 and 1.
    """
    factor = settings.recovery.rollback_rate
    if not 0.0 < factor < 1.0:
        raise SettingsError(f"recovery.rollback_rate={factor} must be between 0 and 1.")
    made = 0
    while True:
        try:
            return attempt(settings)
        except DivergenceError as error:
            checkpoint = latest_checkpoint(run.checkpoints)
            stays = settings.recovery.on_divergence != "rollback" or checkpoint is None
            if present_world().agree(stays):
                raise
            if made >= settings.recovery.rollbacks:
                raise DivergenceError(f"{error} ({made} rollbacks were made, as many as recovery.rollbacks "
                                      "allows.)") from error
            made += 1
            settings = with_lower_rate(settings, factor)
            logger.warning(f"{error}")
            logger.warning(f"Rollback {made} of {settings.recovery.rollbacks}: going on from {checkpoint} with "
                           f"optimizer.learning_rate={settings.optimizer.learning_rate:.6g}.")


def with_lower_rate(settings: Settings, factor: float) -> Settings:
    """The settings with every learning rate multiplied by `factor`, those of the schedule as well."""
    optimizer = dataclasses.replace(settings.optimizer, learning_rate=settings.optimizer.learning_rate * factor)
    schedule = dataclasses.replace(
        settings.schedule, end_learning_rate=settings.schedule.end_learning_rate * factor,
        values=[value * factor for value in settings.schedule.values])
    return dataclasses.replace(settings, optimizer=optimizer, schedule=schedule)
