"""The settings of the learning-rate schedule (`schedule.*`)."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.callbacks.schedules.rates import RATES
from towernmt.core.settings import setting

PLATEAU = "plateau"
"""The one schedule that is no function of the step: it follows a score."""
SCHEDULES = (*RATES, PLATEAU)


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
    minimum: float = setting(1e-7, "plateau: the rate is never reduced below this.", at_least=0)
