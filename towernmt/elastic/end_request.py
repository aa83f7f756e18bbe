"""Ctrl-C, SIGTERM and SIGHUP while workers train: a wish to end, which is passed on to them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class EndAskedError(Exception):
    """The user asked for the end before anything was trained that could be saved."""


class EndRequest:
    """What the user asked for.

    Attributes:
        number: the signal that came first, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raises:
            EndAskedError: a signal has come.
        """
        if self.number is not None:
            raise EndAskedError

    def receive(self, number: int, _: Any = None) -> None:
        """The handler of the signals.

        Raises:
            KeyboardInterrupt: Ctrl-C came again.
        """
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = self.number or number


@contextmanager
def end_requests() -> Iterator[EndRequest]:
    """While the block runs, signals ask for the end; outside the main thread, where Python has no handlers, none do."""
    request, former = EndRequest(), {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        former = {number: signal.signal(number, request.receive) for number in numbers
                  if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
