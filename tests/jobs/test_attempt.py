"""The start of an attempt, with fake actors: the worker that is lost is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from towernmt.farm.farm import Event, Lost, Ready, Result
from towernmt.farm.ray_workers import ONE_PROCESSOR
from towernmt.jobs import attempt
from towernmt.jobs.attempt import Attempt, StopRequest, WorkerExit, WorkerTask

HOSTS = ["10.0.0.3", "10.0.0.1", "10.0.0.2"]
"""The machine of each actor; workers are numbered in the order of the machines."""


class FakeActors:
    """`RayWorkers` of which one actor gives another answer, or none, to one method."""

    def __init__(self, actor: int, method: str, answer: Event | None) -> None:
        self._fault, self._answer = (actor, method), answer
        self._events: list[tuple[int, Event]] = []

    def start(self, actor: int) -> None:
        self._add(actor, "make", Ready(HOSTS[actor]))

    def submit(self, actor: int, task: WorkerTask) -> None:
        self._add(actor, task.method, Result(20000 + actor))

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        events, self._events = self._events, []
        return events

    def _add(self, actor: int, method: str, event: Event) -> None:
        answer = self._answer if (actor, method) == self._fault else event
        if answer is not None:
            self._events.append((actor, answer))


@pytest.mark.parametrize(("actor", "method", "worker", "address"), [
    (0, "start", 2, "10.0.0.3:20000"), (1, "start", 0, "10.0.0.1:20001"), (2, "start", 1, "10.0.0.2:20002"),
    (0, "find_port", 2, ""), (2, "make", 2, "")])
@pytest.mark.parametrize(("answer", "reason"), [(Lost("its node died"), "its node died"),
                                                (None, "no answer within 0 s")])
def test_a_loss_during_the_start_names_the_worker_that_was_lost(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, actor: int, method: str, worker: int, address: str,
        answer: Event | None, reason: str) -> None:
    actors: Any = FakeActors(actor, method, answer)
    monkeypatch.setattr(attempt, "RayWorkers", lambda *_: actors)
    monkeypatch.setattr(attempt, "_START_TIMEOUT", 0.0)
    exits = Attempt(None, 3, ONE_PROCESSOR, StopRequest()).begin([], tmp_path)
    assert exits == [WorkerExit(worker, address, None, reason)]
