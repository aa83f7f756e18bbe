"""A thread that polls other workers, and ends a collective operation that waits too long.

Without it, a worker could wait for ever in its reduction. TensorFlow detects at once the death of a process that it
reads from, but not a stalled or disconnected process, nor the death of a process that it only writes to. The thread
detects these within seconds.

`Waits` measures how long this process has been in a collective operation. TensorFlow's own time limit for collectives
keeps a thread for each of them until the limit, even after the collective has ended. With ten collectives per step and
a limit of ten minutes, that is thousands of threads, until the system has no more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from towernmt.core.tf_compat import tf1

POLL_SECONDS = 2.0
"""Seconds between two polls of a worker."""
ANSWER_TIMEOUT = 12.0
"""Seconds without an answer after which a worker counts as lost. TensorFlow's threads answer even while Python is busy
with a validation, a checkpoint or slow data."""
MAX_REFUSED_POLLS, REFUSED_POLL_SECONDS = 2, 0.5
"""Number of refused polls, and the seconds between them, after which the process counts as ended."""
_STATUS_METHOD = "/tensorflow.WorkerService/GetStatus"
_CHANNEL_OPTIONS = [("grpc.enable_http_proxy", 0),
                    ("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 300)]
"""Reconnect fast enough that each poll is answered by a new attempt to connect."""


class WorkerConnection:
    """A connection to another worker's TensorFlow server.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._poll = self._channel.unary_unary(_STATUS_METHOD)

    def answers(self, seconds: float) -> bool:
        """Return whether the server answers.

        Args:
            seconds: maximum time to wait for an answer.

        Raises:
            ConnectionRefusedError: the server does not accept connections.
        """
        try:
            self._poll(b"", timeout=seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise ConnectionRefusedError(f"{self.address}: {error.details()}") from None
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED      # an error is an answer, too
        return True

    def close(self) -> None:
        """Close the connection to the server."""
        self._channel.close()


def polled_workers(process: int, processes: int) -> list[int]:
    """Return the workers that a worker polls: the first one and its neighbours in a ring, so that all are polled."""
    return sorted({0, (process - 1) % processes, (process + 1) % processes} - {process})


class Watch:
    """A thread that polls workers until it is stopped or a worker is lost.

    Args:
        addresses: the addresses of all workers.
        polled: the indices of the workers to poll.
        on_loss: called in the thread when a worker is lost, with its index and a description; the index is None if all
            workers answer, but the current wait is too long.
        waits: the waits of this process.
        timeout: maximum duration of a wait, in seconds.
    """

    def __init__(self, addresses: Sequence[str], polled: Sequence[int], on_loss: Callable[[int | None, str], None],
                 waits: Waits, timeout: float) -> None:
        self._waits, self._timeout = waits, timeout
        self._connections = {index: WorkerConnection(addresses[index]) for index in polled}
        self._on_loss = on_loss
        self._stopped = threading.Event()
        self._refused = dict.fromkeys(polled, 0)
        self._thread = threading.Thread(target=self._run, name="watch of workers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; returns at once."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(REFUSED_POLL_SECONDS if any(self._refused.values()) else POLL_SECONDS):
                loss = self._find_loss()
                if loss is not None and not self._stopped.is_set():
                    self._on_loss(*loss)
                    return
        finally:
            for connection in self._connections.values():
                connection.close()

    def _find_loss(self) -> tuple[int | None, str] | None:
        for index in self._connections:
            if description := self._loss_of(index):
                return index, description
        if self._waits.seconds() > self._timeout:
            return None, f"did not answer within {self._timeout:g} s"
        return None

    def _loss_of(self, index: int) -> str:
        """Return a description if a worker is lost, else ""."""
        try:
            answers = self._connections[index].answers(ANSWER_TIMEOUT)
        except ConnectionRefusedError:
            self._refused[index] += 1
            return "was lost" if self._refused[index] >= MAX_REFUSED_POLLS else ""
        self._refused[index] = 0
        return "" if answers else f"has not answered for {ANSWER_TIMEOUT:g} s"


def wait_for_all(addresses: Sequence[str], others: Sequence[int], timeout: float, report: Callable[[str], None],
                 report_every: float = 30.0) -> list[int]:
    """Wait until all other workers have started.

    Args:
        addresses: the addresses of all workers.
        others: the indices of the workers to wait for.
        timeout: maximum time to wait, in seconds.
        report: called with a message that names missing workers.
        report_every: seconds between two reports.

    Returns:
        the indices of the workers that have not started.
    """
    missing = {index: WorkerConnection(addresses[index]) for index in others}
    deadline = time.monotonic() + timeout
    next_report = time.monotonic() + report_every
    while missing and time.monotonic() < deadline:
        missing = {index: connection for index, connection in missing.items() if not _has_started(connection)}
        if missing and time.monotonic() >= next_report:
            names = ", ".join(f"{index} ({addresses[index]})" for index in missing)
            report(f"Waiting for worker{'s' if len(missing) > 1 else ''} {names}: not started yet, or not reachable.")
            next_report += report_every
        if missing:
            time.sleep(min(1.0, timeout))
    for connection in missing.values():
        connection.close()
    return sorted(missing)


def _has_started(connection: WorkerConnection) -> bool:
    try:
        if not connection.answers(POLL_SECONDS):
            return False
    except ConnectionRefusedError:
        return False
    connection.close()
    return True


def end_process(status: int, message: str) -> None:
    """Print a message on standard error and exit at once, for a process whose main thread is blocked."""
    print(f"towernmt: {message}", file=sys.stderr, flush=True)
    os._exit(status)


class Waits:
    """The current wait of this process for others, if there is one."""

    def __init__(self) -> None:
        self._start: float | None = None

    def seconds(self) -> float:
        """Return the duration of the current wait, or 0; may be called from any thread."""
        start = self._start
        return 0.0 if start is None else time.monotonic() - start

    def begin(self) -> None:
        """Start to measure a wait."""
        self._start = time.monotonic()

    def end(self) -> None:
        """End the current wait."""
        self._start = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a wait inside the context."""
        self.begin()
        try:
            yield
        finally:
            self.end()


class WaitHook(tf1.train.SessionRunHook):
    """Counts each run of a session as a wait; that of a failed run lasts until the next wait or agreement."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def before_run(self, run_context: Any) -> None:
        self._waits.begin()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._waits.end()
