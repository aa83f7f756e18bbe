"""How much each caller may ask for in a minute: token buckets (Turner 1986), which fill while nothing is asked for."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from towernmt.serve.refusal import Refusal

MOST_CALLERS = 10_000
"""So many are remembered; those that were not heard of for the longest time are forgotten, and begin anew."""


class Rates:
    """The buckets of callers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, caller: str, what: str, amount: float, per_minute: float) -> None:
        """Take this much, if anything is left: what is taken beyond that is waited for the next time.

        Args:
            what: is counted, in the plural.
            per_minute: how much comes back in a minute, and how much there is at most; 0 for no such rate.
        Raises:
            Refusal: nothing is left.
        """
        if not per_minute:
            return
        now = self._clock()
        left, then = self._buckets.pop((caller, what), (per_minute, now))
        left = min(per_minute, left + (now - then) * per_minute / 60)
        allowed = left >= (1 if what == "requests" else 1e-9)
        self._buckets[caller, what] = (left - amount if allowed else left), now
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise Refusal(429, f"You may ask for {per_minute:g} {what} a minute: wait, and try again.",
                          max((1 - left) * 60 / per_minute, 1.0))
