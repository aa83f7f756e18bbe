"""Forecast of a training for `towernmt train --dry-run`: its updates and passes, its memory and its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from towernmt.core.settings import check_ranges
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.run.assemble import with_vocabulary_sizes
from towernmt.run.memory_fit import GIB, peak_of_step, with_fitting_batch
from towernmt.run.product_rates import product_rates
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
        memory: peak memory in bytes of a step with the largest batches: of the process, or of the fullest GPU.
    """

    batch_tokens: int
    updates: float | None
    passes: float | None
    minutes: float | None
    memory: int

    def lines(self, now: datetime) -> list[str]:
        """Return the forecast as sentences; `now` is the time at which training would begin."""
        amounts = [f"{round_down(self.updates):,} updates"] if self.updates is not None else []
        amounts += [f"{self.passes:.1f} passes over the corpus"] if self.passes is not None else []
        if self.minutes is None:
            end = "its end is unknown"
        else:
            end = f"it would end at about {now + timedelta(minutes=self.minutes):%Y-%m-%d %H:%M}"
        unlimited = "without a limit (train.steps, train.epochs or train.minutes)"
        amount = f"about {', '.join(amounts)}" if amounts else unlimited
        return [f"Training: {amount}; {end}.",
                f"Memory: {self.memory / GIB:.2f} GiB (measured on the largest batches of "
                f"data.batch_tokens={self.batch_tokens})."]


def forecast_training(settings: Settings, data: TrainingData, gpus: Sequence[int] | None, towers: int | None,
                      conditions: TrainingConditions | None = None) -> TrainingForecast:
    """Return the forecast of a new training. A separate process makes some steps to measure their memory.

    Args:
        settings: settings of the run.
        data: training data.
        gpus: numbers of the GPUs; None for the CPU.
        towers: number of towers on the CPU, 1 by default.
        conditions: training conditions, if they are known.

    Raises:
        TowerNMTError: a setting is invalid, or a step cannot be made.
    """
    check_ranges(settings)
    settings = with_vocabulary_sizes(settings, data)
    if settings.data.memory_gb:
        settings = with_fitting_batch(settings, data, gpus, towers)
    memory = peak_of_step(settings, data, gpus, towers, sys.maxsize)
    conditions = conditions or training_conditions(data, gpus, None)
    if conditions.rates is None and not gpus:       # the speed of GPUs is not estimated
        conditions = replace(conditions, rates=product_rates(gpus))
    return TrainingForecast(settings.data.batch_tokens, conditions.updates(settings), conditions.passes(settings),
                            _minutes(settings, conditions), memory or 0)


def _minutes(settings: Settings, conditions: TrainingConditions) -> float | None:
    tokens, speed = conditions.tokens(settings), conditions.tokens_per_second(settings)
    expected = tokens / speed / 60 if tokens is not None and speed is not None else None
    limits = [minutes for minutes in (expected, settings.train.minutes) if minutes]
    return min(limits) if limits else None
