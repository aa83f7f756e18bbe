"""Calls in threads: what is read ahead, and the calls whose results nobody needs any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.core import unfinished_work
from towernmt.core.errors import DataError
from towernmt.core.thread_maps import calls_in_threads, map_ahead, map_in_threads, stop_if_abandoned


@given(st.lists(st.integers(1, 7), max_size=5), st.integers(1, 9), st.booleans())
def test_results_are_in_order_and_a_group_is_complete_before_the_next_is_read(
        groups: list[int], ahead: int, has_groups: bool) -> None:
    arguments = [(group, index == size - 1) for group, size in enumerate(groups) for index in range(size)]
    num_read = 0

    def read() -> Iterator[tuple[int, bool]]:
        nonlocal num_read
        for argument in arguments:
            num_read += 1
            yield argument

    results = map_ahead(lambda argument: argument[0] * 10, read(), ahead,
                        ends_group=lambda argument: has_groups and argument[1])
    yielded = []
    for number, (argument, result) in enumerate(results):
        yielded.append(argument)
        assert result == argument[0] * 10
        end = sum(groups[:argument[0] + 1]) if has_groups else len(arguments)
        assert num_read == min(number + ahead, end)
    assert yielded == arguments


class Gate:
    """Calls that wait until the test opens the gate, or ends.

    Attributes:
        begun: the arguments of the calls that have begun.
        ended: the results of the calls, or the names of their errors.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[str] = []
        self.opened = threading.Event()
        self._changed = threading.Condition()

    def pass_through(self, number: int) -> int:
        """Let the call 0 pass, and the others wait. At the end, each stops if it is abandoned."""
        with self._changed:
            self.begun.append(number)
            self._changed.notify_all()
        if number:
            self.opened.wait()
        try:
            stop_if_abandoned()
            outcome = "finished"
        except CancelledError:
            outcome = "stopped"
        with self._changed:
            self.ended.append(outcome)
            self._changed.notify_all()
        return number

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def returns(function: Callable[[], object]) -> bool:
    """Return whether a function returns, although the gate is closed; otherwise a thread waits for it."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_a_closed_stream_does_not_wait_for_its_calls_and_cancels_those_that_have_not_begun(gate: Gate) -> None:
    for count, stream in enumerate((map_ahead(gate.pass_through, range(9), 4),
                                    map_in_threads(gate.pass_through, range(9), 3)), start=1):
        next(stream)
        gate.wait_for(lambda count=count: len(gate.begun) == 4 * count)
        assert returns(stream.close)
    gate.opened.set()
    gate.wait_for(lambda: len(gate.ended) == 8)
    assert sorted(gate.begun) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(gate.ended) == ["finished"] * 2 + ["stopped"] * 6


def test_an_error_does_not_wait_for_the_calls_of_others(gate: Gate) -> None:
    def fail(number: int) -> int:
        if not number:
            gate.wait_for(lambda: gate.begun == [1])
            raise DataError("number 0")
        return gate.pass_through(number)

    errors: list[DataError] = []

    def read() -> None:
        try:
            list(map_ahead(fail, range(2), 2))
        except DataError as error:
            errors.append(error)

    assert returns(read) and str(errors[0]) == "number 0"


def test_the_calls_of_an_abandoned_call_are_abandoned_and_none_of_them_begins(gate: Gate) -> None:
    later: list[int] = []

    def outer(threads: int) -> None:
        with calls_in_threads(1) as inner:
            inner.submit(gate.pass_through, 1).result()
        list(map_in_threads(later.append, [1, 2, 3], threads))

    futures: list[Future[None]] = []
    with pytest.raises(KeyboardInterrupt), calls_in_threads(2) as calls:
        futures += [calls.submit(outer, threads) for threads in (1, 2)]
        gate.wait_for(lambda: len(gate.begun) == 2)
        raise KeyboardInterrupt
    gate.opened.set()
    for future in futures:
        assert isinstance(future.exception(PATIENCE), CancelledError)
    assert gate.ended == ["stopped", "stopped"] and not later


def test_a_call_is_unfinished_while_it_runs_and_after_an_error(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished_work, "_unfinished", 0)

    def fail(number: int) -> None:
        raise DataError("number 0")

    stream = map_ahead(gate.pass_through, range(2), 2)
    next(stream)
    gate.wait_for(lambda: len(gate.begun) == 2)
    assert unfinished_work._unfinished == 1
    gate.opened.set()
    assert list(stream) == [(1, 1)] and unfinished_work._unfinished == 0
    for threads in (1, 2):
        with pytest.raises(DataError):
            list(map_in_threads(fail, [0], threads))
    assert unfinished_work._unfinished == 2
