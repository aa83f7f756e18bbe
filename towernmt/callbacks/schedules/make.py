"""The schedule that a run's settings name."""

from __future__ import annotations

import inspect

from towernmt.callbacks.schedules.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules.plateau import ReduceOnPlateau
from towernmt.callbacks.schedules.rates import RATES
from towernmt.callbacks.schedules.settings import PLATEAU, ScheduleSettings
from towernmt.callbacks.stopping.limits import StopAfterMinutes
from towernmt.callbacks.validation.metrics import mode_of
from towernmt.core.settings import check_ranges


def make_schedule(settings: ScheduleSettings, learning_rate: float, hidden_size: int, steps: int = 0,
                  limit: StopAfterMinutes | None = None) -> LearningRateSchedule:
    """The callback that `settings` names.

    A function of `RATES` gets, by the names of its parameters, the settings that it reads, and these facts of the run.

    Args:
        settings: `schedule.*`.
        learning_rate: peak (or constant) learning rate; for `noam` its `scale`, usually 1 or 2; not for
            `piecewise`.
        hidden_size: width of the model, for `noam`.
        steps: the run's last update, for `budget`; 0 if it is not known.
        limit: the run's limit in minutes, for `budget`; None for none.
    Raises:
        SettingsError: the settings contradict each other.
    """
    check_ranges(settings, "schedule.")
    if settings.name == PLATEAU:
        return ReduceOnPlateau(learning_rate, settings.warmup_steps, settings.metric, settings.patience,
                               settings.factor, minimum=settings.minimum, mode=mode_of(settings.metric))
    values = {**vars(settings), "learning_rate": learning_rate, "scale": learning_rate, "hidden_size": hidden_size,
              "steps": steps, "elapsed": None if limit is None else limit.share_used}
    make = RATES[settings.name]
    return LearningRateSchedule(make(**{name: values[name] for name in inspect.signature(make).parameters}))
