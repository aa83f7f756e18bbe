"""SIGTERM and SIGHUP still end the process, but it cleans up first.

A handler in Python would have to wait for the end of a long call of a library (minutes, if a vocabulary is learned).
So the handlers do nothing. A thread learns of the signal by Python's wake-up file descriptor, cleans up, and ends the
process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_installed: list[int] = []  # signals whose handlers are ours now


@contextmanager
def cleaned_up(clean: Callable[[], None]) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP call `clean`, in another thread, and end the process.

    Nothing is changed where they do something else already (a program's own handlers, `nohup`), or outside the main
    thread, where Python sets no handlers.

    Args:
        clean: is called once, while the main thread goes on; the process ends when it returns or raises.
    """
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
               and signal.getsignal(number) == signal.SIG_DFL]
    if os.name == "nt" or not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, numbers, clean), name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, _nothing)
        _installed.append(number)
    try:
        yield
    finally:
        _restore(former)
        os.close(writer)    # the thread ends


def _watch(reader: int, numbers: Sequence[int], clean: Callable[[], None]) -> None:
    with os.fdopen(reader, "rb", buffering=0) as arrived:
        while data := arrived.read(1):
            if data[0] in numbers:
                try:
                    clean()
                finally:
                    os._exit(128 + data[0])


def _nothing(number: int, frame: object) -> None:
    """The signal is not ignored, and does nothing to the main thread."""


def _restore(wakeup: int = -1) -> None:
    if _installed:
        signal.set_wakeup_fd(wakeup)
    while _installed:
        signal.signal(_installed.pop(), signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore)    # else a child's signal would end its parent
