"""The shared state of the feeder threads of one queue: turns, counts, errors, the end, statistics.

This module uses threading only, not TensorFlow. Every wait is on one condition, so that a turn, an error, the end of
the data or a request to stop wakes the threads that wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from towernmt.core.errors import FeederError


@dataclass
class FeederRecord:
    """Counts and times (in seconds) of one feeder, for monitoring.

    Attributes:
        name: the feeder's name, as in its errors.
        items: number of enqueued elements.
        reading: time inside the feed function.
        waiting_for_turn: time between reading an item and the feeder's turn (in-order runs only).
        enqueuing: time inside the enqueue operation, mostly spent waiting on a full queue.
        reading_since: `time.perf_counter()` at the start of the current call of the feed function; None between calls.
    """

    name: str
    items: int = 0
    reading: float = 0.0
    waiting_for_turn: float = 0.0
    enqueuing: float = 0.0
    reading_since: float | None = None


class FeederRun:
    """The shared state of the feeder threads from `create_threads` to their end, in one session.

    A feeder with an item, an end or an error takes its turn with `take_turn`, and releases it with exactly one of
    `enqueued_by`, `end`, `fail` and `queue_closed`. Only `fail` may be called without a turn. In an in-order run the
    turns rotate, 0, 1, ..., N-1, 0, ..., without the feeders that have ended; otherwise all feeders have their turn at
    the same time. An error takes effect in its turn: all items before it are enqueued, and no item after it is.

    Attributes:
        changed: the condition that guards all attributes; notified at each change.
        enqueued: number of elements enqueued by all feeders.
        error: the error that ended the run, or None.
        stopping: whether a stop was requested, or the queue was closed from outside.
        records: one `FeederRecord` per feeder.
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
        self._holding: set[int] = set()  # feeders that have taken their turn and not released it

    @property
    def finished(self) -> bool:
        """Whether no more elements will be enqueued; hold `changed` for a value that cannot change."""
        return (self.error is not None or not any(self._active)) and not self._holding

    def take_turn(self, feeder: int) -> bool:
        """Wait for the feeder's turn; return False if it must end because of a stop or an earlier error."""
        with self.changed:
            self.changed.wait_for(lambda: self._over() or not self._in_order or self._turn == feeder)
            if self._over():
                return False
            self._holding.add(feeder)
            return True

    def enqueued_by(self, feeder: int) -> None:
        """Count an enqueued item of the feeder, and release the turn."""
        with self.changed:
            self.enqueued += 1
            self.records[feeder].items += 1
            self._release(feeder)

    def end(self, feeder: int) -> None:
        """End the feeder normally. If all feeders have ended without any item, that is an error."""
        with self.changed:
            self._active[feeder] = False
            if not any(self._active) and self.enqueued == 0 and not self._allow_empty and not self.error:
                names = ", ".join(record.name for record in self.records)
                self.error = FeederError(f"The input is empty: {names} returned no items. Check the address "
                                         "of the source and its filters.")
            self._release(feeder)

    def fail(self, feeder: int, error: FeederError) -> None:
        """End the feeder and the run with an error; the first error is kept."""
        with self.changed:
            self._active[feeder] = False
            self.error = self.error or error
            self._release(feeder)

    def queue_closed(self, feeder: int) -> None:
        """End all feeders, because the queue was closed while this feeder used it."""
        with self.changed:
            self._active[feeder] = False
            self.stopping = True
            self._release(feeder)

    def request_stop(self) -> None:
        """End all feeders; one inside its feed function ends when that returns."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def wait_until_over(self) -> None:
        """Wait for the end of the data, an error, or a request to stop."""
        with self.changed:
            self.changed.wait_for(lambda: self.finished or self.stopping)

    def wait_for_item(self, consumed: int, patience: float | None = None,
                      report: Callable[[float], None] | None = None) -> bool:
        """Wait until more than `consumed` elements were enqueued; return False if no more will be.

        Args:
            consumed: number of elements.
            patience: seconds of waiting until the first `report`; the interval doubles after each.
            report: called with the seconds waited so far.
        """
        start = time.perf_counter()
        while True:
            with self.changed:
                if self.changed.wait_for(lambda: self.enqueued > consumed or self.finished or self.stopping, patience):
                    return self.enqueued > consumed
            if patience is not None and report is not None:
                report(time.perf_counter() - start)
                patience *= 2

    def awaited(self) -> str:
        """Return a text that names the feeders inside their sources, for which the others wait, and since when."""
        with self.changed:
            reading = [(index, record.name, time.perf_counter() - record.reading_since)
                       for index, record in enumerate(self.records)
                       if record.reading_since is not None and self._active[index]]
            reading = [item for item in reading if self._in_order and item[0] == self._turn] or reading
        return "; ".join(f"{name} has been reading for {seconds:.0f} s" for _, name, seconds in reading) or (
            "no feeder is reading")

    def _over(self) -> bool:
        return self.stopping or self.error is not None

    def _release(self, feeder: int) -> None:
        self._holding.discard(feeder)
        count = len(self._active)
        following = ((feeder + step) % count for step in range(1, count + 1))
        self._turn = next((candidate for candidate in following if self._active[candidate]), feeder)
        self.changed.notify_all()


@dataclass(frozen=True)
class InputStatistics:
    """Counts since the start of the feeders. The difference of two gives the counts of the time between.

    Attributes:
        begin: `time.perf_counter()` at the start of the feeders, in seconds.
        seconds: time since `begin`.
        batches: global batches taken by training steps.
        target_tokens: target tokens in `batches`; None if the towers have no input `target_tokens`.
        queue_depth: global batches currently in the queue or staged (a level, not a count).
        wait_seconds: time that the training thread waited before a step because the queue was empty (with staging:
            because the next batch was not yet on the towers' devices). It is measured at the start of the step. It does
            not include copying out of the queue, which is part of the step or, with staging, concurrent.
        feeder_blocked_seconds: time of all feeders in the enqueue operation, mostly on a full queue. A high value means
            that the feeders are ahead of training.
        feeder_reading_seconds: time of all feeders in their sources.
    """

    begin: float = 0.0
    seconds: float = 0.0
    batches: int = 0
    target_tokens: float | None = None
    queue_depth: int = 0
    wait_seconds: float = 0.0
    feeder_blocked_seconds: float = 0.0
    feeder_reading_seconds: float = 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time that training waited for data, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def target_tokens_per_second(self) -> float | None:
        """Target tokens taken from the queue per second of wall-clock time."""
        if self.target_tokens is None or self.seconds <= 0:
            return None
        return self.target_tokens / self.seconds

    def __sub__(self, earlier: InputStatistics) -> InputStatistics:
        tokens = None
        if self.target_tokens is not None:
            tokens = self.target_tokens - (earlier.target_tokens or 0.0)
        return replace(
            self, seconds=self.seconds - earlier.seconds, batches=self.batches - earlier.batches,
            target_tokens=tokens, wait_seconds=self.wait_seconds - earlier.wait_seconds,
            feeder_blocked_seconds=self.feeder_blocked_seconds - earlier.feeder_blocked_seconds,
            feeder_reading_seconds=self.feeder_reading_seconds - earlier.feeder_reading_seconds)

    def waited(self, seconds: float) -> InputStatistics:
        """Return these statistics with a wait of the training thread added."""
        return replace(self, wait_seconds=self.wait_seconds + seconds)

    def consumed(self, target_tokens: float | None) -> InputStatistics:
        """Return these statistics with a dequeued batch added."""
        tokens = None if target_tokens is None else (self.target_tokens or 0.0) + target_tokens
        return replace(self, batches=self.batches + 1, target_tokens=tokens)

    def snapshot(self, run: FeederRun | None) -> InputStatistics:
        """Return these statistics with the current time, queue depth and feeder times."""
        if run is None:
            return self
        return replace(self, seconds=time.perf_counter() - self.begin,
                       queue_depth=max(0, run.enqueued - self.batches),
                       feeder_blocked_seconds=sum(record.enqueuing for record in run.records),
                       feeder_reading_seconds=sum(record.reading for record in run.records))
