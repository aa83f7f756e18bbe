"""A training process: `towernmt train` under supervision. It is started, read, signalled, and killed.

The process saves a checkpoint and ends when its parent process ends, which closes its standard input.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DirectoryInUseError
from towernmt.core.machine import limit_processors, processors
from towernmt.core.standard_streams import redirect_to_null_device

OUTPUT, ERRORS = 0, 1
"""Standard output and standard error."""
_READ_SECONDS = 1.0     # maximum seconds of `read`
_CHUNK = 1 << 16        # bytes
_LOCK_TIMEOUT = 60      # seconds for a previous process to save and to end


class ProcessOutput(NamedTuple):
    """The latest output of a process.

    Attributes:
        chunks: pairs of `OUTPUT` or `ERRORS` and the bytes written there, in order.
        status: exit status; None while the process runs.
    """

    chunks: list[tuple[int, bytes]]
    status: int | None


class TrainingProcess:
    """A training in a separate process and session.

    Args:
        arguments: arguments of `towernmt`.
        output: destination of standard output, as in `subprocess`; `subprocess.PIPE` for `read`.
        errors: destination of standard error.
        waits_for: directory that another process may still write; the training waits for its lock. "" for none.
        processors: number of processors that it may use; 0 for all.
        environment: additional environment variables.
        directory: working directory, to which paths in the arguments are relative; None for that of this process.
    """

    def __init__(self, arguments: Sequence[str], output: Any, errors: Any, *, waits_for: Path | str = "",
                 processors: int = 0, environment: Mapping[str, str] | None = None,
                 directory: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(waits_for), str(processors), *arguments],
            stdin=subprocess.PIPE, stdout=output, stderr=errors, start_new_session=True, cwd=directory,
            env={**os.environ, **(environment or {})})
        self._stream_of: dict[int, int] = {}     # descriptors that are not at their end, and which stream each is
        for kind, pipe in ((OUTPUT, self._process.stdout), (ERRORS, self._process.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._stream_of[pipe.fileno()] = kind

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    def read(self) -> ProcessOutput:
        """Wait for output or for the end, at most a second.

        Output is not buffered, so a slow reader slows the process.
        """
        end = time.monotonic() + _READ_SECONDS
        while True:
            status = self.status    # before the output is read, which is then complete
            chunks = self._read(0 if status is not None else max(0.0, min(0.1, end - time.monotonic())))
            if chunks:
                return ProcessOutput(chunks, None)
            if status is not None or time.monotonic() > end:
                return ProcessOutput([], status)

    def send(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.status is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and all processes that it has started, if it runs."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self, seconds: float) -> None:
        """Make the process save a checkpoint and end; kill it if it takes more than `seconds`."""
        self.send(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def _read(self, seconds: float) -> list[tuple[int, bytes]]:
        if not self._stream_of:
            time.sleep(seconds)
            return []
        chunks = []
        for descriptor in select.select(list(self._stream_of), [], [], seconds)[0]:
            if chunk := os.read(descriptor, _CHUNK):
                chunks.append((self._stream_of[descriptor], chunk))
            else:
                del self._stream_of[descriptor]
        return chunks


def ended_by_signal(status: int) -> bool:
    """Return whether a signal ended a training: at once, or after a checkpoint (128 + its number)."""
    return status < 0 or status > 128


def main(arguments: list[str]) -> int:
    """Train, and return the exit status.

    Args:
        arguments: directory to wait for, number of processors, and the arguments of `towernmt`.
    """
    from towernmt.__main__ import main as towernmt  # as a shell starts it

    directory, share = arguments[0], int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # without a stack trace, until the training handles the signal
    if hasattr(signal, "pthread_sigmask"):          # processes of Ray block it, and so do those that they start
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if 0 < share < processors():
        limit_processors(share)
    if directory and Path(directory).is_dir():
        _wait_for_lock(directory)
    return towernmt(arguments[2:])


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_lock(directory: str) -> None:
    """Wait until no other process writes the run, or until the time limit; the training then reports the lock."""
    lock = DirectoryLock(directory, "towernmt train")
    with suppress(DirectoryInUseError):
        lock.acquire(_LOCK_TIMEOUT)
    lock.release()


_ERROR_PREFIX = b"towernmt: "


class WorkerOutput:
    """Writes the output of one worker in one attempt.

    The final error message (`towernmt: ...`) is held back, because the supervisor decides whether to show it.

    Attributes:
        error: the final error message without its prefix; "" if there was none.
    """

    error = ""

    def __init__(self) -> None:
        self._line = b""        # an incomplete line of standard error

    def write(self, chunks: Iterable[tuple[int, bytes]]) -> None:
        """Write some output; see `ProcessOutput.chunks`."""
        for kind, chunk in chunks:
            if kind == ERRORS:
                *lines, self._line = (self._line + chunk).splitlines(keepends=True) or [b""]
                if self._line.endswith(b"\n"):
                    lines, self._line = [*lines, self._line], b""
                chunk = b"".join(line for line in lines if not self._is_error(line))
            if chunk:
                self._write(kind, chunk)

    def close(self) -> None:
        """Write an incomplete last line."""
        if self._line and not self._is_error(self._line):
            self._write(ERRORS, self._line)

    def _is_error(self, line: bytes) -> bool:
        if not line.startswith(_ERROR_PREFIX):
            return False
        self.error = line[len(_ERROR_PREFIX):].decode(errors="replace").strip()
        return True

    def _write(self, kind: int, chunk: bytes) -> None:
        raise NotImplementedError


class TerminalOutput(WorkerOutput):
    """Writes the output of worker 0 to the standard streams of this process."""

    def __init__(self) -> None:
        super().__init__()
        decoder = codecs.getincrementaldecoder("utf-8")     # a chunk may end within a character
        self._decoders = {kind: decoder(errors="replace") for kind in (OUTPUT, ERRORS)}

    def _write(self, kind: int, chunk: bytes) -> None:
        stream: Any = sys.stderr if kind == ERRORS else sys.stdout
        try:
            stream.write(self._decoders[kind].decode(chunk))
            stream.flush()
        except BrokenPipeError:     # training continues when the reader of its output has ended
            redirect_to_null_device(stream)


class FileOutput(WorkerOutput):
    """Appends the output of another worker to its log file, including the final error message.

    Args:
        path: path of the file, which contains all attempts.
        title: first line of this attempt.
    """

    def __init__(self, path: Path, title: str) -> None:
        super().__init__()
        self._path, self._title = path, f"{title}\n".encode()

    def _is_error(self, line: bytes) -> bool:
        if super()._is_error(line):
            self._write(ERRORS, line)
            return True
        return False

    def _write(self, kind: int, chunk: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(self._title + chunk)
        self._title = b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
