"""Batches distributed to processes: each computes its share, and all get the same results or the same error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.callbacks import validation_towers as module
from towernmt.callbacks.validation_towers import StoppedError, map_over_processes
from towernmt.core.errors import DivergenceError
from towernmt.core.world import World


class Threads(World):
    """A world in which each process is a thread."""

    def __init__(self, process: int, messages: list[bytes], all_there: threading.Barrier) -> None:
        super().__init__(process, len(messages))
        self._messages, self._all_there = messages, all_there

    def exchange(self, data: bytes) -> list[bytes]:
        self._messages[self.process] = data
        self._all_there.wait(PATIENCE)
        return self._messages


def in_processes(count: int, function: Callable[[int], Any], batches: list[int]) -> list[Any]:
    """Return the results or the error of each process."""
    messages, outcomes = [b""] * count, [None] * count
    barrier, thread_state = threading.Barrier(count), threading.local()

    def run(process: int) -> None:
        thread_state.world = Threads(process, messages, barrier)
        try:
            outcomes[process] = list(map_over_processes(function, iter(batches)))
        except (DivergenceError, StoppedError) as error:
            outcomes[process] = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "current_world", lambda: thread_state.world)
        threads = [threading.Thread(target=run, args=(process,)) for process in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


@given(count=st.integers(1, 4), batches=st.lists(st.integers(), max_size=12))
def test_each_batch_is_done_once_and_all_have_the_results_in_order(count: int, batches: list[int]) -> None:
    done: list[int] = []

    def square(number: int) -> int:
        done.append(number)
        return number ** 2

    assert in_processes(count, square, batches) == [[number ** 2 for number in batches]] * count
    assert sorted(done) == sorted(batches)


@pytest.mark.parametrize("error", [DivergenceError("not a number"), StoppedError()])
def test_an_error_in_one_process_ends_all_processes(error: Exception) -> None:
    def fails(number: int) -> int:
        if number == 4:
            raise error
        return number

    ends = in_processes(3, fails, [*range(6)])
    assert [(type(end), end.args) for end in ends] == [(type(error), error.args)] * 3
