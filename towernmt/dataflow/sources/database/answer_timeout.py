"""A bound on how long a statement may wait for its answer, and a warning while it waits.

A server that is there but does not answer (a frozen process, a machine that swaps) keeps a connection alive for ever:
its kernel acknowledges every packet. So the client must look at the clock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)
FIRST_REPORT = 30.0   # seconds


class AnswerTimeout:
    """A thread that measures how long each block takes, and cuts the connection if it takes too long.

    The driver then raises what it raises for any connection that is lost.

    Args:
        name: of the source, for the log.
        seconds: that a block may take.
        connection: gives the driver's connection, or None as long as there is none; it is cut if it has a `fileno`
            (psycopg), since other drivers have a bound of their own.
    """

    def __init__(self, name: str, seconds: float, connection: Callable[[], Any]) -> None:
        self._name, self._seconds, self._connection = name, seconds, connection
        self._since: float | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A block whose time is measured."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="database watch", daemon=True)
            self._thread.start()
        self._since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:        # nothing may be cut from now on: its descriptor may soon be another file's
                self._since = None

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def _look(self) -> None:
        reported = 0.0
        while not self._closed.wait(min(1.0, self._seconds / 4)):
            with self._lock:
                waited = 0.0 if self._since is None else time.monotonic() - self._since
                if waited >= self._seconds:
                    _cut(self._connection())
            if waited < FIRST_REPORT:
                reported = 0.0
            elif waited - reported >= FIRST_REPORT and waited < self._seconds:
                reported = waited
                logger.warning("%s: no answer for %.0f s (a lock, a long search, or a frozen server); waiting up to "
                               "%.0f s.", self._name, waited, self._seconds)


def _cut(connection: Any) -> None:
    fileno = getattr(connection, "fileno", None)
    if fileno is None:
        return
    try:
        with socket.socket(fileno=os.dup(fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except Exception as error:      # the driver's own for a connection that is gone, which nobody waits for
        logger.debug("cannot cut a connection: %s", error)
