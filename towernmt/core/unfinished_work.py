"""Work that may be unfinished when a command ends, and the end of a process that does not wait for it.

Python waits for all threads at its end, and CTranslate2 for all batches in its queue. After Ctrl-C, an error, or the
end of the reader of the output, nobody needs these results. So a command with unfinished work ends its process itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

INTERRUPTED = 128 + signal.SIGINT.value
"""The exit status of a command that Ctrl-C has ended."""

_lock = threading.Lock()
_unfinished = 0
_background_threads: WeakSet[threading.Thread] = WeakSet()


@contextmanager
def unfinished_work() -> Iterator[None]:
    """Count the work of the block as unfinished until the block ends. After an exception, it stays unfinished."""
    _count(1)
    yield
    _count(-1)


def _count(change: int) -> None:
    global _unfinished
    with _lock:
        _unfinished += change


def start_background_thread(function: Callable[[], object], name: str) -> None:
    """Call a function in a thread. The process ends after it, unless Ctrl-C ends the process.

    Args:
        function: the function.
        name: name of the thread.
    """
    thread = threading.Thread(target=function, name=name)
    _background_threads.add(thread)
    thread.start()


def end_without_waiting(status: int) -> None:
    """End the process with an exit status if work is unfinished; otherwise return.

    Functions that `atexit` has registered are called, and standard output and error are flushed. It waits only for
    background threads, and not even for these if the status is that of Ctrl-C. Ctrl-C ends the wait.

    Args:
        status: exit status of the command, whose output is complete.
    """
    try:
        for thread in list(_background_threads):
            if status == INTERRUPTED and thread.is_alive():
                _end(status)
            thread.join()
    except KeyboardInterrupt:
        _end(INTERRUPTED)
    if _unfinished:
        _end(status)


def _end(status: int) -> None:
    with suppress(ValueError):      # not in the main thread, which alone gets Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)    # another Ctrl-C would print a stack trace
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
