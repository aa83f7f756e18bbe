"""Counts of the input queue: batches and tokens that went through, and waiting times."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from towernmt.input_source.feeding import FeederRun


@dataclass(frozen=True)
class InputStatistics:
    """Counts since the feeders started. Subtract two of them to get those of the time between.

    Attributes:
        begin: `time.perf_counter()` at the start of the feeders, in seconds.
        seconds: time since then.
        batches: global batches that training steps took.
        target_tokens: target tokens in them; None if the towers have no input called `target_tokens`.
        queue_depth: global batches waiting in the queue, or staged, now (a level, not a count).
        wait_seconds: time the training thread stood still before a step because the queue was empty (with staging:
            because the next batch was not yet on the towers' devices). It is measured where the step would begin,
            so it is the time lost, not an estimate. Not in it: the copying out of the queue, which is part of the
            step (with staging, it is done at the same time).
        feeder_blocked_seconds: time all feeders together spent in the enqueue operation: on a full queue,
            but for the copying. Much of it means that the feeders are ahead of training.
        feeder_reading_seconds: time all feeders together spent in their sources, making batches.
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
        """Part of the time that training waited for data, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def target_tokens_per_second(self) -> float | None:
        """Target tokens that training took from the queue, a second of wall-clock time."""
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
        """With a wait of the training thread added."""
        return replace(self, wait_seconds=self.wait_seconds + seconds)

    def consumed(self, target_tokens: float | None) -> InputStatistics:
        """With a batch that was dequeued added."""
        tokens = None if target_tokens is None else (self.target_tokens or 0.0) + target_tokens
        return replace(self, batches=self.batches + 1, target_tokens=tokens)

    def snapshot(self, run: FeederRun | None) -> InputStatistics:
        """As of now."""
        if run is None:
            return self
        return replace(self, seconds=time.perf_counter() - self.begin,
                       queue_depth=max(0, run.enqueued - self.batches),
                       feeder_blocked_seconds=sum(record.enqueuing for record in run.records),
                       feeder_reading_seconds=sum(record.reading for record in run.records))
