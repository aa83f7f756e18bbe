"""Learning rates as functions of the step: no TensorFlow, no state.

Each function here gives a `Rate`: from the number of an update, the first of which is 1, to its learning rate.
`LearningRateSchedule` puts a rate into the graph. All begin with the linear warm-up `min(1, step / warmup_steps)` of
Goyal et al. 2017; with `warmup_steps=0` there is none.

A new schedule is a function here, and its name in `RATES`. Its parameters are settings of `ScheduleSettings`, by their
names, or one of the facts of a run that `make_schedule` knows.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from towernmt.core.errors import SettingsError

Rate: TypeAlias = Callable[[int], float]


def constant(learning_rate: float, warmup_steps: int = 0) -> Rate:
    """`learning_rate` for ever."""
    warm = _warmup("constant", warmup_steps)
    return lambda step: learning_rate * warm(step)


def inverse_square_root(learning_rate: float, warmup_steps: int = 4000) -> Rate:
    """The peak `learning_rate` at `warmup_steps`, then in proportion to step ** -0.5.

    The schedule of Vaswani et al. 2017 with its peak given directly (as in fairseq's `inverse_sqrt`).
    """
    _warmup("inverse_square_root", warmup_steps)
    warmup = max(1, warmup_steps)
    return lambda step: learning_rate * min(step / warmup, math.sqrt(warmup / max(1, step)))


def noam(hidden_size: int, warmup_steps: int = 4000, scale: float = 1.0) -> Rate:
    """`scale * hidden_size ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)`.

    Equation 3 of Vaswani et al. 2017. In a run `scale` is `optimizer.learning_rate`, usually 1 or 2.
    """
    _warmup("noam", warmup_steps)
    check_positive("noam", hidden_size=hidden_size)
    warmup = max(1, warmup_steps)
    return lambda step: scale * hidden_size ** -0.5 * min(max(1, step) ** -0.5, step * warmup ** -1.5)


def linear(learning_rate: float, decay_steps: int, warmup_steps: int = 0, end_learning_rate: float = 0.0) -> Rate:
    """A straight line from `learning_rate` to `end_learning_rate` at update `decay_steps`."""
    warm = constant(learning_rate, _decay("linear", warmup_steps, decay_steps))

    def rate(step: int) -> float:
        if step <= warmup_steps:
            return warm(step)
        return learning_rate + (end_learning_rate - learning_rate) * _progress(step, warmup_steps, decay_steps)

    return rate


def cosine(learning_rate: float, decay_steps: int, warmup_steps: int = 0, end_learning_rate: float = 0.0) -> Rate:
    """Half a cosine to `end_learning_rate` at update `decay_steps` (Loshchilov & Hutter 2017)."""
    warm = constant(learning_rate, _decay("cosine", warmup_steps, decay_steps))

    def rate(step: int) -> float:
        if step <= warmup_steps:
            return warm(step)
        fraction = 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup_steps, decay_steps)))
        return end_learning_rate + (learning_rate - end_learning_rate) * fraction

    return rate


def piecewise(boundaries: Sequence[int], values: Sequence[float], warmup_steps: int = 0) -> Rate:
    """`values[i]` for the updates after `boundaries[i - 1]`, up to and with `boundaries[i]`."""
    warm = _warmup("piecewise", warmup_steps)
    if len(values) != len(boundaries) + 1:
        raise SettingsError(
            f"The piecewise schedule got {len(boundaries)} boundaries and {len(values)} values: give one "
            "value more than boundaries, for example boundaries=10000,20000 and values=0.001,0.0005,0.0001.")
    if any(a >= b for a, b in zip(boundaries, boundaries[1:], strict=False)):
        raise SettingsError(f"The piecewise schedule needs boundaries that rise, and got {list(boundaries)}.")
    return lambda step: values[bisect.bisect_left(boundaries, step)] * warm(step)


def exponential(learning_rate: float, decay_steps: int, decay_rate: float = 0.5, warmup_steps: int = 0,
                staircase: bool = False) -> Rate:
    """`learning_rate * decay_rate ** ((step - warmup_steps) / decay_steps)`; in jumps with `staircase`."""
    warm = constant(learning_rate, warmup_steps)
    check_positive("exponential", decay_steps=decay_steps, decay_rate=decay_rate)

    def rate(step: int) -> float:
        if step <= warmup_steps:
            return warm(step)
        exponent = (step - warmup_steps) / decay_steps
        return float(learning_rate * decay_rate ** (math.floor(exponent) if staircase else exponent))

    return rate


def budget(learning_rate: float, steps: int = 0, elapsed: Callable[[], float] | None = None, warmup_steps: int = 0,
           end_learning_rate: float = 0.0) -> Rate:
    """A straight line to `end_learning_rate` at the end of the run ("Budgeted Training", Li et al. 2020).

    With `elapsed` the rate follows the clock: two runs differ, and so does a resumed one.

    Args:
        learning_rate: peak.
        steps: the run's last update, 0 if it is not known.
        elapsed: tells the share of the run's limit in time that is used up, 0 to 1; None for no such limit. Of the two
            limits the nearer counts.
        warmup_steps: updates.
    Raises:
        SettingsError: the run has no limit.
    """
    warm = _warmup("budget", warmup_steps)
    if not steps and elapsed is None:
        raise SettingsError("schedule.name=budget needs a limit to decay to: set train.steps, train.minutes, or (not "
                            "for a stream, whose epochs have no known size) train.epochs.")

    def rate(step: int) -> float:
        done = (step - 1) / steps if steps else 0.0
        if elapsed is not None:
            done = max(done, elapsed())
        return (learning_rate + (end_learning_rate - learning_rate) * min(1.0, done)) * warm(step)

    return rate


RATES: dict[str, Callable[..., Rate]] = {make.__name__: make for make in (
    constant, inverse_square_root, noam, linear, cosine, piecewise, exponential, budget)}
"""By the name that `schedule.name` has."""


def check_positive(schedule: str, **values: float) -> None:
    """Raises SettingsError for the first value that is not above zero."""
    for name, value in values.items():
        if not value > 0:
            raise SettingsError(f"The {schedule} schedule needs {name} above 0, and got {value}. Set {name}.")


def _warmup(schedule: str, warmup_steps: int) -> Rate:
    """The factor of the warm-up, `min(1, step / warmup_steps)`."""
    if warmup_steps < 0:
        raise SettingsError(f"The {schedule} schedule got warmup_steps={warmup_steps}; use 0 for no warm-up.")
    return lambda step: 1.0 if warmup_steps == 0 else min(1.0, step / warmup_steps)


def _decay(schedule: str, warmup_steps: int, decay_steps: int) -> int:
    """`warmup_steps`, which must end before the decay does."""
    _warmup(schedule, warmup_steps)
    if decay_steps <= warmup_steps:
        raise SettingsError(
            f"The {schedule} schedule decays from warmup_steps={warmup_steps} to decay_steps={decay_steps}: "
            "set decay_steps above warmup_steps.")
    return warmup_steps


def _progress(step: int, warmup_steps: int, decay_steps: int) -> float:
    """How much of the way from `warmup_steps` to `decay_steps` is done, in [0, 1]."""
    return min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
