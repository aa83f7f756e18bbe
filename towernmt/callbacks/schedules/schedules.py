"""Learning-rate schedules as pure functions of the step: no TensorFlow, no state.

The first update is step 1. Each `..._rate` function returns the learning rate of one update; the
callbacks in `schedule_callbacks.py` put it into the graph. All of them share the linear warm-up
`min(1, step / warmup_steps)` of Goyal et al. 2017; `warmup_steps=0` means no warm-up.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting

SCHEDULES = (
    "constant", "inverse_square_root", "noam", "linear", "cosine", "piecewise", "exponential", "plateau",
    "budget")


@dataclass
class ScheduleSettings:
    """How the learning rate changes with the step (`schedule.*`)."""

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
        "and /NAME behind it for a further validation set.")
    patience: int = setting(3, "plateau: validations without improvement before the rate is reduced.", at_least=1)
    factor: float = setting(0.5, "plateau: what the rate is multiplied by when it is reduced.", above=0, below=1)
    min_delta: float = setting(0.0, "plateau: a score improves if it exceeds the best by more than this.", at_least=0)
    minimum: float = setting(1e-7, "plateau: the rate is never reduced below this.", at_least=0)


def warmup_factor(step: int, warmup_steps: int) -> float:
    """`min(1, step / warmup_steps)`; 1 without warm-up."""
    return 1.0 if warmup_steps <= 0 else min(1.0, step / warmup_steps)


def constant_rate(step: int, learning_rate: float, warmup_steps: int = 0) -> float:
    """Linear warm-up, then `learning_rate` for ever."""
    return learning_rate * warmup_factor(step, warmup_steps)


def inverse_square_root_rate(step: int, learning_rate: float, warmup_steps: int) -> float:
    """Linear warm-up to the peak `learning_rate` at `warmup_steps`, then in proportion to step ** -0.5.

    The schedule of Vaswani et al. 2017 with its peak given directly (as in fairseq's `inverse_sqrt`).
    """
    warmup = max(1, warmup_steps)
    return learning_rate * min(step / warmup, math.sqrt(warmup / max(1, step)))


def noam_rate(step: int, scale: float, hidden_size: int, warmup_steps: int) -> float:
    """`scale * hidden_size ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)`.

    Equation 3 of Vaswani et al. 2017.
    """
    warmup = max(1, warmup_steps)
    return scale * hidden_size ** -0.5 * min(max(1, step) ** -0.5, step * warmup ** -1.5)


def linear_rate(step: int, learning_rate: float, warmup_steps: int, decay_steps: int,
                end_learning_rate: float = 0.0) -> float:
    """Linear warm-up, then a straight line from `learning_rate` to the end value at `decay_steps`."""
    if step <= warmup_steps:
        return constant_rate(step, learning_rate, warmup_steps)
    return learning_rate + (end_learning_rate - learning_rate) * _progress(step, warmup_steps, decay_steps)


def budget_rate(step: int, done: float, learning_rate: float, warmup_steps: int = 0,
                end_learning_rate: float = 0.0) -> float:
    """Warm-up, times a straight line from `learning_rate` to the end value over the whole run.

    The linear schedule of "Budgeted Training" (Li et al. 2020).

    Args:
        done: the share of the run that is done, 0 to 1.
    """
    rate = learning_rate + (end_learning_rate - learning_rate) * min(1.0, done)
    return rate * warmup_factor(step, warmup_steps)


def cosine_rate(step: int, learning_rate: float, warmup_steps: int, decay_steps: int,
                end_learning_rate: float = 0.0) -> float:
    """Linear warm-up, then half a cosine to the end value at `decay_steps` (Loshchilov & Hutter 2017)."""
    if step <= warmup_steps:
        return constant_rate(step, learning_rate, warmup_steps)
    fraction = 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup_steps, decay_steps)))
    return end_learning_rate + (learning_rate - end_learning_rate) * fraction


def piecewise_rate(step: int, boundaries: Sequence[int], values: Sequence[float],
                   warmup_steps: int = 0) -> float:
    """`values[i]` for the updates after `boundaries[i - 1]`, up to `boundaries[i]`; times the warm-up."""
    return values[bisect.bisect_left(boundaries, step)] * warmup_factor(step, warmup_steps)


def exponential_rate(step: int, learning_rate: float, decay_steps: int, decay_rate: float,
                     warmup_steps: int = 0, staircase: bool = False) -> float:
    """Linear warm-up, then `learning_rate * decay_rate ** ((step - warmup_steps) / decay_steps)`."""
    if step <= warmup_steps:
        return constant_rate(step, learning_rate, warmup_steps)
    exponent = (step - warmup_steps) / decay_steps
    return float(learning_rate * decay_rate ** (math.floor(exponent) if staircase else exponent))


def check_positive(schedule: str, **values: float) -> None:
    """Raises SettingsError for the first value that is not above zero."""
    for name, value in values.items():
        if not value > 0:
            raise SettingsError(f"The {schedule} schedule needs {name} above 0, and got {value}. Set {name}.")


def check_warmup(schedule: str, warmup_steps: int) -> None:
    """Raises SettingsError for a negative warm-up."""
    if warmup_steps < 0:
        raise SettingsError(f"The {schedule} schedule got warmup_steps={warmup_steps}; use 0 for no warm-up.")


def check_decay(schedule: str, warmup_steps: int, decay_steps: int) -> None:
    """Raises SettingsError if the decay ends before the warm-up does."""
    if decay_steps <= warmup_steps:
        raise SettingsError(
            f"The {schedule} schedule decays from warmup_steps={warmup_steps} to decay_steps={decay_steps}: "
            "set decay_steps above warmup_steps.")


def check_pieces(boundaries: Sequence[int], values: Sequence[float]) -> None:
    """Raises SettingsError unless boundaries rise and there is one value more than boundaries."""
    if len(values) != len(boundaries) + 1:
        raise SettingsError(
            f"The piecewise schedule got {len(boundaries)} boundaries and {len(values)} values: give one "
            "value more than boundaries, for example boundaries=10000,20000 and values=0.001,0.0005,0.0001.")
    if any(a >= b for a, b in zip(boundaries, boundaries[1:], strict=False)):
        raise SettingsError(f"The piecewise schedule needs boundaries that rise, and got {list(boundaries)}.")


def _progress(step: int, warmup_steps: int, decay_steps: int) -> float:
    """How much of the way from `warmup_steps` to `decay_steps` is done, in [0, 1]."""
    return min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
