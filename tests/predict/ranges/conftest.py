"""Fake workers in this process, which reverse lines and are lost at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from towernmt.farm.farm import Event, Lost, Ready, Result
from towernmt.predict.lines.faults import FaultCounts
from towernmt.predict.ranges.job import RangeResult, RangeTask

TASK = {"model": "a"}


def translated(line: bytes) -> bytes:
    return b" ".join(reversed(line.split())) + b"\n"


class FakeWorkers:
    """`Workers` within this thread; results may come in another order than the tasks."""

    def __init__(self, count: int, seed: int = 0, losses: float = 0.0,
                 stop_at: int | None = None, answer: Callable[[RangeTask], Event] | None = None) -> None:
        self.count, self._random, self._losses, self._stop_at = count, random.Random(seed), losses, stop_at
        self._answer = answer or (lambda work: Result(self.translate(work)))
        self.waiting: deque[tuple[int, Event]] = deque()
        self.asked: list[RangeTask] = []
        self.stopped = False

    def start(self, number: int) -> None:
        self.waiting.append((number, Ready(TASK)))

    def submit(self, number: int, work: RangeTask) -> None:
        self.asked.append(work)
        lost = self._random.random() < self._losses
        self.waiting.append((number, Lost("killed") if lost else self._answer(work)))

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        if self._stop_at is not None:
            self._stop_at -= 1
            if self._stop_at < 0:
                raise KeyboardInterrupt
        self.waiting.rotate(self._random.randrange(3))
        return [self.waiting.popleft()] if self.waiting else []

    def stop(self) -> None:
        self.stopped = True

    @staticmethod
    def translate(work: RangeTask) -> RangeResult:
        return RangeResult([b"".join(map(translated, work.lines.lines))], len(work.lines.lines),
                           FaultCounts(work.name).as_json())


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """Write three files: one with several ranges, one with a line without a line end, and an empty one."""
    made = []
    for name, lines in (("a.de", 5230), ("b.de", 1), ("c.de", 0)):
        path = tmp_path / name
        path.write_bytes(b"\n".join(b"%d x\xc3\xa4 %d" % (number, lines) for number in range(lines)))
        made.append(path)
    return made


@pytest.fixture
def fake_workers() -> Any:
    return FakeWorkers
