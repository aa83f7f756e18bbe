"""Where training ends: after so many updates, or so many minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining

from towernmt.callbacks.stateful import StatefulCallback
from towernmt.core.errors import SettingsError
from towernmt.core.world import present_world


class StopAtStep(Callback):
    """Ends training when `steps` updates have been made, those before a resume included."""

    _chief_only = False

    def __init__(self, steps: int) -> None:
        """
        Args:
            steps: the last update.
        Raises:
            SettingsError: `steps` is below 1.
        """
        if steps < 1:
            raise SettingsError(f"train.steps={steps}: set a limit of 1 or more updates, or none.")
        self.steps = steps

    def _before_epoch(self) -> None:
        self._stop_if_reached()

    def _trigger_step(self) -> None:
        self._stop_if_reached()

    def _stop_if_reached(self) -> None:
        if self.global_step >= self.steps:
            raise StopTraining(f"the limit of {self.steps} updates is reached")


class StopAfterMinutes(StatefulCallback):
    """Ends training after so many minutes of it, those before a resume included.

    The clock runs from `_before_train`, through validation and saving, and is read after each step.
    What a killed run did after its last checkpoint does not count: the resumed run does it again.
    """

    _chief_only = False
    state_key = "stop_after_minutes"

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            minutes: the limit.
            clock: a function that gives seconds.
        Raises:
            SettingsError: `minutes` is not above 0.
        """
        if not minutes > 0:
            raise SettingsError(f"train.minutes={minutes}: set a limit above 0, or none.")
        self.minutes = minutes
        self._clock = clock
        self._before = 0.0
        self._started: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._before + (0.0 if self._started is None else self._clock() - self._started)

    def share_used(self) -> float:
        """The share of the limit that is used up, from 0: the same in all processes, which all ask for it."""
        return present_world().agree(self.elapsed_seconds) / (60 * self.minutes)

    def _before_train(self) -> None:
        self._started = self._clock()

    def _before_epoch(self) -> None:
        self._stop_if_reached()

    def _trigger_step(self) -> None:
        self._stop_if_reached()

    def _after_train(self) -> None:
        self._before, self._started = self.elapsed_seconds, None

    def _stop_if_reached(self) -> None:
        if self.elapsed_seconds >= 60 * self.minutes:
            raise StopTraining(f"the limit of {self.minutes:g} minutes is reached")

    def state(self) -> dict[str, Any]:
        return {"elapsed_seconds": self.elapsed_seconds}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._before = float(state["elapsed_seconds"])
