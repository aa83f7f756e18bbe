"""Call a function with each of several arguments, in several threads, and yield the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def map_in_threads(function: Callable[[A], B], arguments: Sequence[A], threads: int) -> Iterator[B]:
    """Yield the results in the order of the arguments, with up to `threads` calls at a time, each in its own thread.

    An error is raised in place of its result; calls that have not started by then are cancelled.
    """
    threads = min(threads, len(arguments))
    if threads <= 1:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="map") as pool:
        yield from pool.map(function, arguments)


def map_ahead(function: Callable[[A], B], arguments: Iterable[A], ahead: int,
              is_only: Callable[[A], bool] = lambda argument: False) -> Iterator[tuple[A, B]]:
    """Yield each argument and its result, in order, and read the arguments meanwhile.

    Args:
        function: called in its own thread, or in this thread if `ahead` is 1.
        arguments: the arguments, which this thread reads.
        ahead: maximum number of arguments that are read before the first result is yielded, and of calls at the same
            time.
        is_only: returns whether an argument is the only one; its call is made in this thread.
    """
    waiting: deque[tuple[A, Callable[[], B]]] = deque()
    with ThreadPoolExecutor(ahead, thread_name_prefix="map") as pool:
        for argument in arguments:
            is_here = ahead == 1 or is_only(argument)
            waiting.append((argument, partial(function, argument) if is_here else
                            pool.submit(function, argument).result))
            if len(waiting) == ahead:
                first_argument, result = waiting.popleft()
                yield first_argument, result()
        for last_argument, result in waiting:
            yield last_argument, result()
