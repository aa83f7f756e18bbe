"""Learning rates as functions of the step, and the settings that select one: no TensorFlow, no state.

Each function returns a `Rate`, a function from the number of an update (from 1) to its learning rate.
`LearningRateSchedule` applies a rate to the graph. All rates start with the linear warm-up
`min(1, step / warmup_steps)` of Goyal et al. 2017; `warmup_steps=0` turns it off.

To add a schedule, add a function here and to `RATES`. Its parameters have the names of fields of `ScheduleSettings`,
or of values that `make_schedule` passes.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting

Rate: TypeAlias = Callable[[int], float]


def constant(learning_rate: float, warmup_steps: int = 0) -> Rate:
    """Return a function from the number of an update to its rate: a linear warm-up, then `learning_rate`."""
    warm = _warmup("constant", warmup_steps)
    return lambda step: learning_rate * warm(step)


def inverse_square_root(learning_rate: float, warmup_steps: int = 4000) -> Rate:
    """Return a function of `step` with the peak `learning_rate` at `warmup_steps`, then in proportion to step ** -0.5.

    It is the schedule of Vaswani et al. 2017, with the peak as parameter (as in fairseq's `inverse_sqrt`).
    """
    _warmup("inverse_square_root", warmup_steps)
    warmup = max(1, warmup_steps)
    return lambda step: learning_rate * min(step / warmup, math.sqrt(warmup / max(1, step)))


def noam(hidden_size: int, warmup_steps: int = 4000, scale: float = 1.0) -> Rate:
    """Return a function of `step`: `scale * hidden_size ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)`.

    This is equation 3 of Vaswani et al. 2017. In a run, `scale` is `optimizer.learning_rate`, usually 1 or 2.
    """
    _warmup("noam", warmup_steps)
    check_positive("noam", hidden_size=hidden_size)
    warmup = max(1, warmup_steps)
    return lambda step: scale * hidden_size ** -0.5 * min(max(1, step) ** -0.5, step * warmup ** -1.5)


def linear(learning_rate: float, decay_steps: int, warmup_steps: int = 0, end_learning_rate: float = 0.0) -> Rate:
    """Return a function that falls linearly from `learning_rate` to `end_learning_rate` at update `decay_steps`."""
    warm = constant(learning_rate, _decay("linear", warmup_steps, decay_steps))

    def rate(step: int) -> float:
        if step <= warmup_steps:
            return warm(step)
        return learning_rate + (end_learning_rate - learning_rate) * _progress(step, warmup_steps, decay_steps)

    return rate


def cosine(learning_rate: float, decay_steps: int, warmup_steps: int = 0, end_learning_rate: float = 0.0) -> Rate:
    """Return half a cosine from `learning_rate` to `end_learning_rate` at `decay_steps` (Loshchilov & Hutter 2017)."""
    warm = constant(learning_rate, _decay("cosine", warmup_steps, decay_steps))

    def rate(step: int) -> float:
        if step <= warmup_steps:
            return warm(step)
        fraction = 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup_steps, decay_steps)))
        return end_learning_rate + (learning_rate - end_learning_rate) * fraction

    return rate


def piecewise(boundaries: Sequence[int], values: Sequence[float], warmup_steps: int = 0) -> Rate:
    """Return a function that is `values[i]` for the updates from `boundaries[i - 1] + 1` to `boundaries[i]`."""
    warm = _warmup("piecewise", warmup_steps)
    if len(values) != len(boundaries) + 1:
        raise SettingsError(
            f"The piecewise schedule got {len(boundaries)} boundaries and {len(values)} values: set one "
            "value more than boundaries, for example boundaries=10000,20000 and values=0.001,0.0005,0.0001.")
    if any(a >= b for a, b in zip(boundaries, boundaries[1:], strict=False)):
        raise SettingsError(f"The piecewise schedule got boundaries={list(boundaries)}: set them in ascending order.")
    return lambda step: values[bisect.bisect_left(boundaries, step)] * warm(step)


def exponential(learning_rate: float, decay_steps: int, decay_rate: float = 0.5, warmup_steps: int = 0,
                staircase: bool = False) -> Rate:
    """Return a function of `step`: `learning_rate * decay_rate ** ((step - warmup_steps) / decay_steps)`.

    With `staircase`, the exponent is rounded down.
    """
    warm = constant(learning_rate, warmup_steps)
    check_positive("exponential", decay_steps=decay_steps, decay_rate=decay_rate)

    def rate(step: int) -> float:
        if step <= warmup_steps:
            return warm(step)
        exponent = (step - warmup_steps) / decay_steps
        return float(learning_rate * decay_rate ** (math.floor(exponent) if staircase else exponent))

    return rate


def budget(learning_rate: float, steps: int = 0, elapsed: Callable[[], float] | None = None, warmup_steps: int = 0,
           end_learning_rate: float = 0.0, of_epochs: Callable[[int], float] | None = None) -> Rate:
    """Return a function that falls linearly to `end_learning_rate` at the end of the run (Li et al. 2020).

    With `elapsed` the rate follows the clock, so two runs differ, and a resumed run differs from an uninterrupted one.

    Args:
        learning_rate: the rate at the start.
        steps: the last update of the run; 0: not known.
        elapsed: returns the used share of the time limit, 0 to 1; None: no time limit. If there are several
            limits, the nearest one counts.
        warmup_steps: updates of linear warm-up.
        end_learning_rate: the rate at the end of the run.
        of_epochs: returns the used share of the epochs before an update; None: no limit of epochs.

    Raises:
        SettingsError: the run has no limit.
    """
    warm = _warmup("budget", warmup_steps)
    if not steps and elapsed is None and of_epochs is None:
        raise SettingsError("schedule.name=budget needs a limit to decay to: set train.steps, train.minutes, or (not "
                            "for a stream, whose epochs have no known size) train.epochs.")

    def rate(step: int) -> float:
        used_share = (step - 1) / steps if steps else 0.0
        if elapsed is not None:
            used_share = max(used_share, elapsed())
        if of_epochs is not None:
            used_share = max(used_share, of_epochs(step))
        return (learning_rate + (end_learning_rate - learning_rate) * min(1.0, used_share)) * warm(step)

    return rate


RATES: dict[str, Callable[..., Rate]] = {make.__name__: make for make in (
    constant, inverse_square_root, noam, linear, cosine, piecewise, exponential, budget)}
"""The functions of rates, by the value of `schedule.name`."""


def check_positive(schedule: str, **values: float) -> None:
    """Raise SettingsError for the first value that is not positive."""
    for name, value in values.items():
        if not value > 0:
            raise SettingsError(f"The {schedule} schedule got {name}={value}: set {name} above 0.")


def _warmup(schedule: str, warmup_steps: int) -> Rate:
    """Return the factor of the warm-up, `min(1, step / warmup_steps)`."""
    if warmup_steps < 0:
        raise SettingsError(f"The {schedule} schedule got warmup_steps={warmup_steps}; use 0 for no warm-up.")
    return lambda step: 1.0 if warmup_steps == 0 else min(1.0, step / warmup_steps)


def _decay(schedule: str, warmup_steps: int, decay_steps: int) -> int:
    """Return `warmup_steps`, after checking that the warm-up ends before the decay."""
    _warmup(schedule, warmup_steps)
    if decay_steps <= warmup_steps:
        raise SettingsError(
            f"The {schedule} schedule decays from warmup_steps={warmup_steps} to decay_steps={decay_steps}: "
            "set decay_steps above warmup_steps.")
    return warmup_steps


def _progress(step: int, warmup_steps: int, decay_steps: int) -> float:
    """Return the position of `step` between `warmup_steps` (0) and `decay_steps` (1)."""
    return min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))


PLATEAU = "plateau"
"""The schedule that follows a score instead of the step."""
SCHEDULES = (*RATES, PLATEAU)


@dataclass
class ScheduleSettings:
    """How the learning rate depends on the step."""

    name: str = setting("inverse_square_root", "Learning-rate schedule.", choices=SCHEDULES)
    warmup_steps: int = setting(4000, "Updates of linear warm-up from 0; 0 for none.", at_least=0)
    decay_steps: int = setting(
        100000, "linear, cosine: the update at which the end value is reached; "
        "exponential: updates in which the rate is multiplied once by decay_rate.", at_least=0)
    end_learning_rate: float = setting(
        0.0, "linear, cosine: the value from decay_steps on; budget: the value at the run's limit.", at_least=0)
    decay_rate: float = setting(0.5, "exponential: the factor of each decay_steps updates.", above=0)
    staircase: bool = setting(False, "exponential: decay in jumps at whole multiples of decay_steps.")
    boundaries: list[int] = setting([], "piecewise: the last update of each value but the last one.", at_least=0)
    values: list[float] = setting([], "piecewise: learning rates, one more than boundaries.", at_least=0)
    metric: str = setting(
        "validation_bleu",
        "plateau: the score that is watched; validation_bleu, validation_chrf, validation_loss, validation_perplexity, "
        "with /NAME appended for a further validation set.")
    patience: int = setting(3, "plateau: validations without improvement before the rate is reduced.", at_least=1)
    factor: float = setting(0.5, "plateau: factor of the rate at each reduction.", above=0, below=1)
    minimum: float = setting(1e-7, "plateau: the rate is never reduced below this.", at_least=0)
