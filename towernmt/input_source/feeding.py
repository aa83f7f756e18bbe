"""The shared state of the feeder threads of one queue: whose turn it is, what was enqueued, and how it ended.

Pure threading, no TensorFlow: every wait is on one condition, so that a turn, an error, the end of
the data or a request to stop wakes exactly those who wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from towernmt.core.errors import FeederError


@dataclass
class FeederRecord:
    """What one feeder did, for monitoring. Times are in seconds.

    Attributes:
        name: the feeder's name, as in its errors.
        items: elements that it put into the queue.
        reading: time inside its feed function.
        waiting_for_turn: time with an item in hand, until it was its turn (in-order runs only).
        enqueuing: time inside the enqueue operation; nearly all of it is waiting on a full queue.
        reading_since: `time.perf_counter()` when it entered the feed function that it is in; None outside of one.
    """

    name: str
    items: int = 0
    reading: float = 0.0
    waiting_for_turn: float = 0.0
    enqueuing: float = 0.0
    reading_since: float | None = None


class FeederRun:
    """The shared state of the feeder threads from `create_threads` to their end, in one session.

    A feeder that has an item, an end or an error asks for its turn with `take_turn`, and gives it back
    with exactly one of `enqueued_by`, `end`, `fail` and `queue_closed`. Only `fail` may be called without a turn.
    In an in-order run the turn goes round 0, 1, ..., N-1, 0, ... leaving out the feeders that ended; otherwise
    all feeders have it at once. An error takes effect in its turn: what comes before it in the order is in the
    queue, what comes after it never will be.

    Attributes:
        changed: the condition that guards everything here; notified at each change.
        enqueued: elements put into the queue, by all feeders.
        error: why the run failed, or None.
        stopping: somebody asked to stop, or the queue was closed from outside.
        records: a `FeederRecord` per feeder.
    """

    def __init__(self, names: list[str], in_order: bool, allow_empty: bool) -> None:
        self.changed = threading.Condition()
        self.enqueued = 0
        self.error: FeederError | None = None
        self.stopping = False
        self.records = [FeederRecord(name) for name in names]
        self._in_order = in_order
        self._allow_empty = allow_empty
        self._active = [True] * len(names)
        self._turn = 0
        self._holding: set[int] = set()  # feeders between take_turn and giving it back

    @property
    def finished(self) -> bool:
        """Whether nothing will be enqueued any more (hold `changed`, or accept that it may just change)."""
        return (self.error is not None or not any(self._active)) and not self._holding

    def take_turn(self, feeder: int) -> bool:
        """Wait until this feeder may act; False if it must leave (a stop, or an error before its turn)."""
        with self.changed:
            self.changed.wait_for(lambda: self._over() or not self._in_order or self._turn == feeder)
            if self._over():
                return False
            self._holding.add(feeder)
            return True

    def enqueued_by(self, feeder: int) -> None:
        """The feeder's item is in the queue; the turn goes on."""
        with self.changed:
            self.enqueued += 1
            self.records[feeder].items += 1
            self._give_back(feeder)

    def end(self, feeder: int) -> None:
        """The feeder has nothing more. If no feeder has, and there was not one item, that is an error."""
        with self.changed:
            self._active[feeder] = False
            if not any(self._active) and self.enqueued == 0 and not self._allow_empty and not self.error:
                names = ", ".join(record.name for record in self.records)
                self.error = FeederError(f"The input is empty: not one item came from {names}. "
                                         "Check the source's address and its filters.")
            self._give_back(feeder)

    def fail(self, feeder: int, error: FeederError) -> None:
        """The feeder cannot go on, and so the run; the first error is kept."""
        with self.changed:
            self._active[feeder] = False
            self.error = self.error or error
            self._give_back(feeder)

    def queue_closed(self, feeder: int) -> None:
        """The queue was closed while this feeder used it: end all feeders."""
        with self.changed:
            self._active[feeder] = False
            self.stopping = True
            self._give_back(feeder)

    def request_stop(self) -> None:
        """End all feeders; one that is inside its feed function ends when that returns."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def wait_until_over(self) -> None:
        """Wait for the end of the data, an error, or a request to stop."""
        with self.changed:
            self.changed.wait_for(lambda: self.finished or self.stopping)

    def wait_for_item(self, consumed: int, patience: float | None = None,
                      tell: Callable[[float], None] | None = None) -> bool:
        """Wait until more than `consumed` elements were enqueued; False if no more will come.

        Args:
            patience: seconds of waiting after which to `tell`; then again after twice as long, and so on.
            tell: gets the seconds that were waited.
        """
        began = time.perf_counter()
        while True:
            with self.changed:
                if self.changed.wait_for(lambda: self.enqueued > consumed or self.finished or self.stopping, patience):
                    return self.enqueued > consumed
            if patience is not None and tell is not None:
                tell(time.perf_counter() - began)
                patience *= 2

    def awaited(self) -> str:
        """The feeders that the others wait for: those inside their sources, and since when."""
        with self.changed:
            now = time.perf_counter()
            reading = [(index, record.name, now - record.reading_since) for index, record in enumerate(self.records)
                       if record.reading_since is not None and self._active[index]]
            reading = [item for item in reading if self._in_order and item[0] == self._turn] or reading
        return "; ".join(f"{name} has been reading for {seconds:.0f} s" for _, name, seconds in reading) or (
            "no feeder is reading")

    def _over(self) -> bool:
        return self.stopping or self.error is not None

    def _give_back(self, feeder: int) -> None:
        self._holding.discard(feeder)
        count = len(self._active)
        following = ((feeder + step) % count for step in range(1, count + 1))
        self._turn = next((other for other in following if self._active[other]), feeder)
        self.changed.notify_all()
