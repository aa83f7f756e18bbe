"""A farm of local processes, which are killed, fail, or cannot start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from towernmt.core.errors import TowerNMTError, UnfinishedError
from towernmt.farm.farm import Failed, Farm, LocalWorkers, Lost, Result, WorkerError, call

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


class Square:
    """Squares numbers; a negative number kills the process at its first attempt, and 0 raises an exception."""

    description = "square"

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def __call__(self, task: int) -> int:
        mark = self._marks / str(task)
        if task < 0 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task == 0:
            raise ValueError("zero")
        return task * task


def make_square(marks: Path, number: int) -> Square:
    return Square(marks)


def make_nothing(action: Callable[[], Any], number: int) -> Any:
    action()


@pytest.fixture
def make_farm() -> Iterator[Callable[..., Farm]]:
    """Makes farms of two processes, which are stopped after the test."""
    farms: list[Farm] = []

    def make(function: Any, report: Callable[[str], None] = lambda text: None) -> Farm:
        farms.append(Farm(LocalWorkers(function, 2, lambda: "fork"), "Use fewer workers.", report))
        return farms[-1]

    yield make
    for farm in farms:
        farm.stop()


def run(farm: Farm, tasks: list[int]) -> dict[int, Any]:
    """Run tasks, again after a loss; returns the value or the exception of each."""
    waiting, values = list(enumerate(tasks)), dict[int, Any]()
    farm.start(farm.count)
    while len(values) < len(tasks):
        while waiting and farm.idle:
            key, task = waiting.pop(0)
            farm.assign(key, task, f"number {task}")
        for event in farm.events():
            if isinstance(event.event, Lost) and event.task is not None:
                waiting.append((event.task, tasks[event.task]))
            elif isinstance(event.event, Result) and event.task is not None:
                values[event.task] = event.event.value
            elif isinstance(event.event, Failed) and event.task is not None:
                values[event.task] = event.event.error
    return values


def test_a_killed_worker_is_restarted_and_its_task_is_done(make_farm: Any, tmp_path: Path) -> None:
    reports: list[str] = []
    farm = make_farm(partial(make_square, tmp_path), reports.append)
    assert farm.wait_for_first() == "square"
    values = run(farm, [1, -2, 3, 0, 5])
    assert str(values.pop(3)) == "zero" and values == {0: 1, 1: 4, 2: 9, 4: 25}
    assert len(reports) == 1
    assert "was lost with number -2 (SIGKILL, which the system sends when memory is short)" in reports[0]


def test_an_exception_of_a_worker_has_its_stack_trace_as_a_note() -> None:
    failed = call(lambda: 1 // 0)
    assert isinstance(failed, Failed) and isinstance(failed.error, ZeroDivisionError)
    assert "Traceback" in failed.error.__notes__[0]

    class LocalError(Exception):
        """Cannot be pickled."""

    def fail() -> None:
        raise LocalError

    failed = call(fail)
    assert isinstance(failed, Failed) and isinstance(failed.error, WorkerError) and "LocalError" in str(failed.error)


def test_a_farm_gives_up_after_three_losses_for_each_worker(make_farm: Any, tmp_path: Path) -> None:
    farm = make_farm(partial(make_square, tmp_path))
    run(farm, [1])
    with pytest.raises(UnfinishedError, match=r"6 workers were lost in a row, the last one with number -\d+ "
                                              r"\(SIGKILL, .*\)\. Use fewer workers\."):
        for number in range(2, 20):
            farm.assign(number, -number, f"number -{number}") if farm.idle else None
            list(farm.events())


def test_workers_that_cannot_start_are_an_error(make_farm: Any) -> None:
    with pytest.raises(TowerNMTError, match=r"3 workers were lost while they started \(the last: exit status 7\)\. "
                                            r"Use fewer workers\."):
        make_farm(partial(make_nothing, partial(os._exit, 7))).wait_for_first()
    with pytest.raises(ValueError, match="invalid literal"):
        make_farm(partial(make_nothing, partial(int, "x"))).wait_for_first()


def test_a_stop_from_another_thread_ends_all_processes(make_farm: Any, tmp_path: Path) -> None:
    workers = LocalWorkers(partial(make_square, tmp_path), 2, lambda: "fork")
    workers.start(0)
    process = workers._processes[0][0]
    thread = threading.Thread(target=workers.stop)
    thread.start()
    thread.join()
    workers.stop()
    assert process.exitcode == -signal.SIGKILL
