"""A thread that asks other workers for a sign of life, so that one which stands still is found within seconds; it also
ends a wait that takes too long.

Without it, a worker waits in its reduction: TensorFlow sees at once that a process which it reads from has died, but
not that one stands still or is cut off, nor that one died which it writes to.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

import grpc

from towernmt.cluster.waits import Waits

EVERY = 2.0
"""Seconds between two questions."""
SILENCE = 12.0
"""Seconds without an answer after which a worker counts as lost. TensorFlow's own threads answer, whatever Python does:
during validations, while a checkpoint is written, while the data is slow."""
REFUSALS, SOON = 2, 0.5
"""So many questions, so many seconds after each other, that nobody takes mean that the process has ended."""
_STATUS = "/tensorflow.WorkerService/GetStatus"
_OPTIONS = [("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 300)]
"""No two questions have the answer of one attempt to connect."""


class Line:
    """A connection to another worker's TensorFlow server.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._ask = self._channel.unary_unary(_STATUS)

    def answers(self, seconds: float) -> bool:
        """Whether the server answers.

        Args:
            seconds: how long to wait for an answer.
        Raises:
            ConnectionRefusedError: nobody takes the question.
        """
        try:
            self._ask(b"", timeout=seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise ConnectionRefusedError(f"{self.address}: {error.details()}") from None
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED      # an error is an answer, too
        return True

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def neighbours(process: int, processes: int) -> list[int]:
    """Whom a worker asks: the first one, and those beside it in the ring. So whoever is lost, someone misses it."""
    return sorted({0, (process - 1) % processes, (process + 1) % processes} - {process})


class Watch:
    """Asks until it is stopped, or until a worker is lost.

    Args:
        addresses: of all workers.
        asked: the indices of those to ask.
        at_loss: called in the thread once a worker is lost: with its index, and what was seen; with None for the index
            if all answer, but the present wait is too long.
        waits: the waits of this process.
        timeout: seconds that a wait may take.
    """

    def __init__(self, addresses: Sequence[str], asked: Sequence[int], at_loss: Callable[[int | None, str], None],
                 waits: Waits, timeout: float) -> None:
        self._waits, self._timeout = waits, timeout
        self._lines = {index: Line(addresses[index]) for index in asked}
        self._at_loss = at_loss
        self._stopped = threading.Event()
        self._refused = dict.fromkeys(asked, 0)
        self._thread = threading.Thread(target=self._run, name="watch of workers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask nobody any more; returns at once."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(SOON if any(self._refused.values()) else EVERY):
                lost = self._lost()
                if lost is not None and not self._stopped.is_set():
                    self._at_loss(*lost)
                    return
        finally:
            for line in self._lines.values():
                line.close()

    def _lost(self) -> tuple[int | None, str] | None:
        for index in self._lines:
            if seen := self._missed(index):
                return index, seen
        if self._waits.seconds() > self._timeout:
            return None, f"did not answer within {self._timeout:g} s"
        return None

    def _missed(self, index: int) -> str:
        """How a worker is lost; "" where it is there."""
        try:
            answers = self._lines[index].answers(SILENCE)
        except ConnectionRefusedError:
            self._refused[index] += 1
            return "is gone" if self._refused[index] >= REFUSALS else ""
        self._refused[index] = 0
        return "" if answers else f"has not answered for {SILENCE:g} s"


def wait_for_all(addresses: Sequence[str], others: Sequence[int], timeout: float, tell: Callable[[str], None],
                 tell_every: float = 30.0) -> list[int]:
    """Wait until all other workers have begun.

    Args:
        addresses: of all workers.
        others: the indices of those to wait for.
        timeout: seconds to wait at most.
        tell: gets a sentence on who is missing each `tell_every` seconds.
    Returns:
        the indices of those that did not begin.
    """
    missing = {index: Line(addresses[index]) for index in others}
    end = time.monotonic() + timeout
    tell_at = time.monotonic() + tell_every
    while missing and time.monotonic() < end:
        missing = {index: line for index, line in missing.items() if not _has_begun(line)}
        if missing and time.monotonic() >= tell_at:
            names = ", ".join(f"{index} ({addresses[index]})" for index in missing)
            tell(f"Waiting for worker{'s' if len(missing) > 1 else ''} {names}: not begun yet, or not to be reached.")
            tell_at += tell_every
        if missing:
            time.sleep(min(1.0, timeout))
    for line in missing.values():
        line.close()
    return sorted(missing)


def _has_begun(line: Line) -> bool:
    try:
        if not line.answers(EVERY):
            return False
    except ConnectionRefusedError:
        return False
    line.close()
    return True


def end_process(status: int, sentence: str) -> None:
    """End at once, by a sentence on standard error: for a process whose main thread cannot be had back."""
    print(f"towernmt: {sentence}", file=sys.stderr, flush=True)
    os._exit(status)
