"""Call a function with each of several arguments, in several threads, and yield the results in order.

Calls are abandoned if nobody needs their results any more: if a generator of results is closed, or after an error or
Ctrl-C. Abandoned calls that have not begun are cancelled. Those that have begun end at their next step, and nobody
waits for them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from towernmt.core.unfinished_work import unfinished_work

A = TypeVar("A")
B = TypeVar("B")
_of_thread = threading.local()      # `calls`: the `Calls` of a thread


class Calls:
    """Calls in the threads of a pool; see `calls_in_threads`. Calls in these threads can have further threads.

    Args:
        threads: maximum number of calls at the same time.
        name: prefix of the names of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._outer: Calls | None = getattr(_of_thread, "calls", None)
        self._are_abandoned = False
        self._pool = ThreadPoolExecutor(threads, name, self._enter_thread)

    def submit(self, function: Callable[..., B], /, *arguments: Any) -> Future[B]:
        """Call a function in a thread as soon as one is free."""
        return self._pool.submit(self._call, function, *arguments)

    def finish(self) -> None:
        """Wait for all calls."""
        self._pool.shutdown()

    def abandon(self) -> None:
        """Cancel the calls that have not begun, and let the others end at their next step, without waiting for them."""
        self._are_abandoned = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def check(self) -> None:
        """Raise an error if these calls, or the call that has begun them, are abandoned.

        Raises:
            CancelledError: they are abandoned.
        """
        if self._are_abandoned:
            raise CancelledError
        if self._outer is not None:
            self._outer.check()

    def _enter_thread(self) -> None:
        _of_thread.calls = self

    def _call(self, function: Callable[..., B], *arguments: Any) -> B:
        self.check()
        return _called(function, *arguments)


def _called(function: Callable[..., B], *arguments: Any) -> B:
    """Call a function. If it is running when the command ends, or if it has failed, its work is unfinished."""
    with unfinished_work():
        return function(*arguments)


@contextmanager
def calls_in_threads(threads: int, name: str = "map") -> Iterator[Calls]:
    """Yield `Calls`. If the block ends normally, wait for all calls; if an exception ends it, abandon them.

    Args:
        threads: maximum number of calls at the same time.
        name: prefix of the names of the threads.
    """
    calls = Calls(threads, name)
    try:
        yield calls
        calls.finish()
    except BaseException:
        calls.abandon()
        raise


def stop_if_abandoned() -> None:
    """End the call of this thread if it is abandoned. Long calls do this before each of their steps.

    Raises:
        CancelledError: nobody needs the result of the call.
    """
    calls: Calls | None = getattr(_of_thread, "calls", None)
    if calls is not None:
        calls.check()


def map_in_threads(function: Callable[[A], B], arguments: Sequence[A], threads: int) -> Iterator[B]:
    """Yield the results in the order of the arguments, with up to `threads` calls at a time, each in its own thread.

    An error is raised in place of its result, and the other calls are abandoned.
    """
    threads = min(threads, len(arguments))
    if threads <= 1:
        for argument in arguments:
            stop_if_abandoned()
            yield _called(function, argument)
        return
    with calls_in_threads(threads) as calls:
        results = deque(calls.submit(function, argument) for argument in arguments)
        while results:
            yield results.popleft().result()


def map_ahead(function: Callable[[A], B], arguments: Iterable[A], ahead: int,
              is_here: Callable[[A], bool] | None = None,
              ends_group: Callable[[A], bool] = lambda argument: False) -> Iterator[tuple[A, B]]:
    """Yield each argument and its result, in order, and read the arguments meanwhile.

    After an error, the other calls are abandoned.

    Args:
        function: the function.
        arguments: the arguments, which this thread reads.
        ahead: maximum number of arguments that are read before the first result is yielded, and of calls at the same
            time.
        is_here: returns whether the call with an argument is made in this thread; None for all calls if `ahead` is 1,
            and otherwise for none.
        ends_group: returns whether an argument is the last one of a group. The results of a group are yielded before
            the next group is read.
    """
    waiting: deque[tuple[A, Callable[[], B]]] = deque()
    with calls_in_threads(ahead) as calls:
        for argument in arguments:
            makes_call = ahead == 1 if is_here is None else is_here(argument)
            waiting.append((argument, partial(_called, function, argument) if makes_call else
                            calls.submit(function, argument).result))
            num_left = 0 if ends_group(argument) else ahead - 1
            while len(waiting) > num_left:
                first_argument, result = waiting.popleft()
                yield first_argument, result()
        for last_argument, result in waiting:
            yield last_argument, result()
