"""A worker on its machine: start the training process and forward its output."""

from __future__ import annotations

import codecs
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.cluster.cluster_description import TF_CONFIG
from towernmt.core.standard_streams import lead_nowhere
from towernmt.jobs.training_process import start_training

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
        """Return a free port of this machine."""
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
        """Kill the process and all processes that it has started."""
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


_SENTENCE = b"towernmt: "


class WorkerOutput:
    """What one worker says in one attempt.

    Its last sentence (`towernmt: ...`) is kept back: whoever knows what the others did decides who hears it.

    Attributes:
        sentence: that, without the word before it; "" if there was none.
    """

    sentence = ""

    def __init__(self) -> None:
        self._begun = b""       # a line of standard error whose end is not there yet

    def take(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Hand on what was said; see `Said.pieces`."""
        for kind, piece in pieces:
            if kind == ERRORS:
                *lines, self._begun = (self._begun + piece).splitlines(keepends=True) or [b""]
                if self._begun.endswith(b"\n"):
                    lines, self._begun = [*lines, self._begun], b""
                piece = b"".join(line for line in lines if not self._is_sentence(line))
            if piece:
                self._write(kind, piece)

    def close(self) -> None:
        """No more is said."""
        if self._begun and not self._is_sentence(self._begun):
            self._write(ERRORS, self._begun)

    def _is_sentence(self, line: bytes) -> bool:
        if not line.startswith(_SENTENCE):
            return False
        self.sentence = line[len(_SENTENCE):].decode(errors="replace").strip()
        return True

    def _write(self, kind: int, piece: bytes) -> None:
        raise NotImplementedError


class TerminalOutput(WorkerOutput):
    """Forwards the output of worker 0 to the standard streams of this process."""

    def __init__(self) -> None:
        super().__init__()
        decoder = codecs.getincrementaldecoder("utf-8")     # a piece may end within a character
        self._decoders = {kind: decoder(errors="replace") for kind in (OUTPUT, ERRORS)}

    def _write(self, kind: int, piece: bytes) -> None:
        stream: Any = sys.stderr if kind == ERRORS else sys.stdout
        try:
            stream.write(self._decoders[kind].decode(piece))
            stream.flush()
        except BrokenPipeError:     # a training whose reader has gone goes on
            lead_nowhere(stream)


class FileOutput(WorkerOutput):
    """Another worker.

    Args:
        path: of its file, which has all attempts one after the other.
        title: a line for the beginning of this one.
    """

    def __init__(self, path: Path, title: str) -> None:
        super().__init__()
        self._path, self._title = path, f"{title}\n".encode()

    def _is_sentence(self, line: bytes) -> bool:
        if super()._is_sentence(line):
            self._write(ERRORS, line)
            return True
        return False

    def _write(self, kind: int, piece: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(self._title + piece)
        self._title = b""
