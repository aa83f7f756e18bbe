"""When something is due that happens every so many steps, every so many minutes, or both."""

from __future__ import annotations

import time
from collections.abc import Callable


class Period:
    """Says when it is time.

    Args:
        steps: 0 for never.
        minutes: since it happened last; 0 for never.
        clock: a function that gives seconds.
    """

    def __init__(self, steps: int = 0, minutes: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self.minutes, self._clock = steps, minutes, clock
        self._since = clock()

    def restart(self) -> None:
        """Count the minutes from now: training begins, or it has happened."""
        self._since = self._clock()

    def due(self, step: int) -> bool:
        """Whether it is time, `step` updates having been made."""
        if self._steps and step % self._steps == 0:
            return True
        return bool(self.minutes) and (self._clock() - self._since) / 60 >= self.minutes
