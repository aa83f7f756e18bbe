"""Learning-rate schedules: `LearningRateSchedule(cosine(learning_rate=1e-3, decay_steps=20000))`."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "learning_rate": ["LearningRateSchedule"],
    "make": ["make_schedule"],
    "patience": ["Patience"],
    "plateau": ["ReduceOnPlateau"],
    "rates": ["RATES", "Rate", "budget", "constant", "cosine", "exponential", "inverse_square_root", "linear", "noam",
              "piecewise"],
    "settings": ["ScheduleSettings"],
})
