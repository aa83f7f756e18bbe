"""Schedules as classes of their own, with the arguments of their functions in `rates`: the former spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from towernmt.callbacks.schedules import rates
from towernmt.callbacks.schedules.learning_rate import LearningRateSchedule
from towernmt.callbacks.stopping.limits import StopAfterMinutes


class NamedSchedule(LearningRateSchedule):
    """`LearningRateSchedule(make(...))`."""

    make: ClassVar[Callable[..., rates.Rate]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(type(self).make(*arguments, **options))


class ConstantSchedule(NamedSchedule):
    """`constant(learning_rate, warmup_steps)`."""

    make = staticmethod(rates.constant)


class InverseSquareRootSchedule(NamedSchedule):
    """`inverse_square_root(learning_rate, warmup_steps)`."""

    make = staticmethod(rates.inverse_square_root)


class NoamSchedule(NamedSchedule):
    """`noam(hidden_size, warmup_steps, scale)`."""

    make = staticmethod(rates.noam)


class LinearSchedule(NamedSchedule):
    """`linear(learning_rate, decay_steps, warmup_steps, end_learning_rate)`."""

    make = staticmethod(rates.linear)


class CosineSchedule(NamedSchedule):
    """`cosine(learning_rate, decay_steps, warmup_steps, end_learning_rate)`."""

    make = staticmethod(rates.cosine)


class PiecewiseSchedule(NamedSchedule):
    """`piecewise(boundaries, values, warmup_steps)`."""

    make = staticmethod(rates.piecewise)


class ExponentialSchedule(NamedSchedule):
    """`exponential(learning_rate, decay_steps, decay_rate, warmup_steps, staircase)`."""

    make = staticmethod(rates.exponential)


class BudgetSchedule(LearningRateSchedule):
    """`budget(learning_rate, steps, elapsed, warmup_steps, end_learning_rate)`, with a limit in place of `elapsed`.

    Args:
        limit: the run's limit in minutes, None for none.
    """

    def __init__(self, learning_rate: float, steps: int = 0, limit: StopAfterMinutes | None = None,
                 warmup_steps: int = 0, end_learning_rate: float = 0.0) -> None:
        elapsed = None if limit is None else limit.share_used
        super().__init__(rates.budget(learning_rate, steps, elapsed, warmup_steps, end_learning_rate))
