"""A thread that does work in the background: it reads ahead while something else goes on."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "Future[Any]"]


class BackgroundThread:
    """Does what is submitted, in order, always in the same thread.

    The thread is a daemon: a source that does not answer cannot keep a program from ending, as it could through
    `ThreadPoolExecutor`. It begins with the first job and ends with the object.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do `work` in the thread; the future has its result or its exception."""
        future: Future[T] = Future()
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
                weakref.finalize(self, self._jobs.put, None)
        self._jobs.put((work, future))
        return future


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        work, future = job
        try:
            future.set_result(work())
        except BaseException as error:
            # The future's reader gets it, and this thread goes on.
            future.set_exception(error)
        del job, work, future  # so that the thread does not hold the last result while it waits
