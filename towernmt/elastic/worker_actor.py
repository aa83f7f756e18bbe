"""A worker on its machine: starts the process that trains, and hands on what that says. Ray makes an actor of it."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from towernmt.cluster.description import TF_CONFIG
from towernmt.elastic.training_process import start_training

OUTPUT, ERRORS = 0, 1
PORTS = range(20_000, 32_768)
"""Ports for workers: above those of Ray's own processes, below those that systems give to connections."""
_AT_MOST = 1.0          # seconds that a worker is silent before it says that it still runs
_PIECE = 1 << 16        # bytes


class Place(NamedTuple):
    """Where a worker is.

    Attributes:
        host: the address of its machine.
        problem: why it cannot work there, in a sentence; "" if it can.
    """

    host: str
    problem: str = ""


class Said(NamedTuple):
    """What a worker has said lately.

    Attributes:
        pieces: (`OUTPUT` or `ERRORS`, what was written there), in order.
        status: of its process; None as long as it runs.
    """

    pieces: list[tuple[int, bytes]]
    status: int | None


class WorkerActor:
    """A worker of one attempt."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._open: dict[int, int] = {}     # descriptor to kind, of those whose end has not come

    def place(self, directory: str) -> Place:
        """Go to the directory in which the command was started, from which its paths lead."""
        from ray.util import get_node_ip_address

        host = get_node_ip_address()
        if not Path(directory).is_dir():
            return Place(host, f"{socket.gethostname()} ({host}) has no {directory}, where the command was started: "
                               "start it in a directory that all machines of the cluster share.")
        os.chdir(directory)
        return Place(f"[{host}]" if ":" in host else host)

    def port(self) -> int:
        """A port that nothing on this machine has."""
        while True:
            port = random.choice(PORTS)
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("", port))
                return port

    def start(self, arguments: Sequence[str], workers: Sequence[str], number: int, share: int, run: str) -> None:
        """Start to train.

        Args:
            arguments: what `towernmt` gets.
            workers: the address of each.
            number: of this one.
            share: processors.
            run: its directory.
        """
        config = {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": number}}
        self._process = start_training(
            arguments, subprocess.PIPE, subprocess.PIPE, waits_for=run if number == 0 else "", share=share,
            environment={TF_CONFIG: json.dumps(config), "PYTHONUNBUFFERED": "1"})
        for kind, pipe in ((OUTPUT, self._process.stdout), (ERRORS, self._process.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._open[pipe.fileno()] = kind

    def follow(self) -> Said:
        """Wait for a word, or for the end; a second at most. Nothing is read ahead, so that a process whose reader
        stands still does so, too."""
        process = self._running()
        end = time.monotonic() + _AT_MOST
        while True:
            status = process.poll()     # before reading: what is said by now is all that it says
            pieces = self._read(0 if status is not None else max(0.0, min(0.1, end - time.monotonic())))
            if pieces:
                return Said(pieces, None)
            if status is not None or time.monotonic() > end:
                return Said([], status)

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        if self._running().poll() is None:
            self._running().send_signal(number)

    def kill(self) -> None:
        """End the process at once, with all that it has started."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self, seconds: float) -> list[tuple[int, bytes]]:
        if not self._open:
            time.sleep(seconds)
            return []
        pieces = []
        for descriptor in select.select(list(self._open), [], [], seconds)[0]:
            if piece := os.read(descriptor, _PIECE):
                pieces.append((self._open[descriptor], piece))
            else:
                del self._open[descriptor]
        return pieces

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the worker was not started")
        return self._process
