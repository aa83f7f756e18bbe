"""Forecast of a training for `towernmt train --dry-run`: its updates and passes, its memory and its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from towernmt.checkpoint.checkpoint_files import check_position_settings, latest_checkpoint, read_state
from towernmt.core.settings import check_ranges
from towernmt.dataflow.batches.training_data import TrainingData, make_batches
from towernmt.run.assemble import patience_scalar, with_vocabulary_sizes
from towernmt.run.averaged_end import check_average
from towernmt.run.directory import RunDirectory
from towernmt.run.initial_values import initial_values
from towernmt.run.memory_fit import GIB, peak_of_step, wants_search, with_fitting_batch, with_found_batch
from towernmt.run.product_rates import product_rates
from towernmt.run.resume import (
    check_data,
    check_memory_limit,
    check_resumable,
    check_run_vocabulary,
    trained_seconds,
    why_finished,
)
from towernmt.run.rules.automatic_value import round_down
from towernmt.run.run_settings import Settings
from towernmt.run.training_conditions import TrainingConditions, training_conditions


@dataclass(frozen=True)
class TrainingForecast:
    """Forecast of a training.

    Attributes:
        batch_tokens: `data.batch_tokens`, which depends on `data.memory_gb` if that is set.
        updates: number of updates within the training limit; None if unknown, or without a limit.
        passes: number of passes over the corpus; None if unknown, or without a limit.
        minutes: duration of the training; None if unknown, or without a limit.
        memory: peak memory in bytes of a step with the largest batches: of the process, or of the fullest GPU; None if
            such a step does not fit.
        updates_before: number of updates that a resumed run has already made.
        minutes_before: duration of these updates.
    """

    batch_tokens: int
    updates: float | None
    passes: float | None
    minutes: float | None
    memory: int | None
    updates_before: int = 0
    minutes_before: float = 0.0

    def lines(self, now: datetime) -> list[str]:
        """Return the forecast as sentences; `now` is the time at which training would begin."""
        amounts = [f"{round_down(self.updates):,} updates"] if self.updates is not None else []
        amounts += [f"{self.passes:.1f} passes over the corpus"] if self.passes is not None else []
        unlimited = "without a limit (train.steps, train.epochs or train.minutes)"
        unknown = unlimited if self.minutes is None else "an unknown number of updates"
        amount = f"about {', '.join(amounts)}" if amounts else unknown
        if self.updates_before:
            amount += f", of which the run has made {self.updates_before:,} updates"
        return [f"Training: {amount}; {self._end(now)}.", f"Memory: {self._memory()}."]

    def _end(self, now: datetime) -> str:
        if self.minutes is None:
            return "its end is unknown"
        minutes = max(0.0, self.minutes - self.minutes_before)
        if minutes > _CENTURY:
            return "it would take more than a century"
        return f"it would end at about {now + timedelta(minutes=minutes):%Y-%m-%d %H:%M}"

    def _memory(self) -> str:
        batches = f"the largest batches of data.batch_tokens={self.batch_tokens}"
        if self.memory is None:
            return f"{batches} do not fit, so lower data.batch_tokens (and raise train.update_cycle)"
        return f"{self.memory / GIB:.2f} GiB (measured on {batches})"


_CENTURY = 100 * 365.25 * 24 * 60
"""In minutes. Dates end with the year 9999."""


def why_nothing_to_train(settings: Settings, data: TrainingData, run: RunDirectory) -> str:
    """Return a sentence on why a run is finished, or "" if a training would make updates.

    Args:
        settings: settings of the run.
        data: training data.
        run: directory of a new run, or of one that would resume.

    Raises:
        TowerNMTError: a training would refuse the settings or the data.
    """
    check_ranges(settings)
    run.refuse_prepared_data()
    check_resumable(run, with_vocabulary_sizes(settings, data))
    check_run_vocabulary(run, data)
    check_data(run, data)
    check_average(settings, data)
    if reason := why_finished(run, settings.train, patience_scalar(settings, data, run)):
        return reason
    if wants_search(settings, run):
        check_memory_limit(run, settings)
    elif (latest := latest_checkpoint(run.checkpoints)) is not None:
        batches = make_batches(data, with_found_batch(settings, run).data, ahead=False)
        check_position_settings(read_state(latest), latest, batches.position_settings)
    return ""


def forecast_training(settings: Settings, data: TrainingData, gpus: Sequence[int] | None, towers: int | None,
                      conditions: TrainingConditions | None = None, run: RunDirectory | None = None
                      ) -> TrainingForecast:
    """Return the forecast of a training. A separate process makes some steps to measure their memory.

    Args:
        settings: settings of the run.
        data: training data.
        gpus: numbers of the GPUs; None for the CPU.
        towers: number of towers on the CPU, 1 by default.
        conditions: training conditions, if they are known.
        run: the run that would resume; None for a new run.

    Raises:
        TowerNMTError: a setting is invalid, the data do not suit the initial values, or a step cannot be made.
    """
    check_ranges(settings)
    settings = with_vocabulary_sizes(settings, data)
    check_average(settings, data)
    if run is None or latest_checkpoint(run.checkpoints) is None:
        initial_values(settings.init, data, settings.data.seed)      # raises the errors of a training
    if run is not None and not wants_search(settings, run):
        settings = with_found_batch(settings, run)
    elif settings.data.memory_gb:
        settings = with_fitting_batch(settings, data, gpus, towers)
    memory = peak_of_step(settings, data, gpus, towers, sys.maxsize)
    conditions = conditions or training_conditions(data, gpus, None)
    before = _made_before(run)
    if conditions.rates is None and not gpus and not all(before):       # the speed of GPUs is not estimated
        conditions = replace(conditions, rates=product_rates(gpus))
    return TrainingForecast(settings.data.batch_tokens, *_amounts(settings, conditions, *before), memory, *before)


def _made_before(run: RunDirectory | None) -> tuple[int, float]:
    """Return the number of updates of the last checkpoint, and the minutes that they took."""
    latest = None if run is None else latest_checkpoint(run.checkpoints)
    if latest is None:
        return 0, 0.0
    state = read_state(latest)
    return state.step, (trained_seconds(state) or 0.0) / 60


def _amounts(settings: Settings, conditions: TrainingConditions, updates_before: int, minutes_before: float
             ) -> tuple[float | None, float | None, float | None]:
    """Return the updates, the passes and the minutes of a training, each None if unknown or without a limit.

    A resumed run is expected to continue at the speed of its previous updates, validations included. This is known
    better than the speed of a new run, which is estimated within a factor of two, and on GPUs not at all.
    """
    if not updates_before or not minutes_before:
        return conditions.updates(settings), conditions.passes(settings), _minutes(settings, conditions)
    per_minute, train = updates_before / minutes_before, settings.train
    by_number = conditions.updates(replace(settings, train=replace(train, minutes=0.0)))
    limits = [limit for limit in (by_number, train.minutes * per_minute) if limit]
    if not limits:
        return None, conditions.passes(settings), None
    updates = min(limits)
    return updates, conditions.passes_of_updates(settings, updates), updates / per_minute


def _minutes(settings: Settings, conditions: TrainingConditions) -> float | None:
    """Return the expected minutes of a new training, at the estimated speed."""
    tokens, speed = conditions.tokens(settings), conditions.tokens_per_second(settings)
    expected = tokens / speed / 60 if tokens is not None and speed is not None else None
    limits = [minutes for minutes in (expected, settings.train.minutes) if minutes]
    return min(limits) if limits else None
