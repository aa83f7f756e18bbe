"""A program of a test as a process whose output is read while it runs."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import ForkedProcess, ForkServer
from tests.waiting import PATIENCE


@dataclass
class Result:
    """The end of a process: its status and its output."""

    status: int
    output: str
    errors: str

    @property
    def text(self) -> str:
        return self.output + self.errors

    def the_error(self) -> str:
        """Return the one sentence on standard error with the reason of the failure; fail if there is a stack trace."""
        assert "Traceback" not in self.text, self.text
        sentences = [line for line in self.errors.splitlines() if line.startswith("towernmt: ")]
        assert len(sentences) == 1, self.text
        return sentences[0]


class Process:
    """A program as a process whose output is read while it runs.

    The pipe of its output holds 4 KiB, about 24 lines of the log, so the process is at most that far ahead of its
    reader.

    Args:
        command: arguments of `python`.
        directory: working directory.
        server: starts the program as its fork; None for a new interpreter.
        optimizes: whether TensorFlow optimises the graphs of a fork, as for users.
    """

    def __init__(self, command: Sequence[str | Path], directory: Path, server: ForkServer | None = None,
                 optimizes: bool = True) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
        arguments = [*map(str, command)]
        self.popen: ForkedProcess | subprocess.Popen[bytes]
        if server is None:
            self.popen = subprocess.Popen(
                [sys.executable, *arguments], cwd=directory, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        else:
            self.popen = server.start(arguments, directory, environment, optimizes)
        assert self.popen.stdout is not None and self.popen.stderr is not None
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self.popen.stdout, fcntl.F_SETPIPE_SZ, 4096)
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._error_reader = threading.Thread(target=self._read_errors, daemon=True)
        self._error_reader.start()
        self._watchdog = threading.Timer(PATIENCE, self.popen.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def wait_for(self, pattern: str) -> str:
        """Read the output up to a line that matches `pattern`."""
        for raw in self.popen.stdout:
            self._lines.append(raw.decode())
            if re.search(pattern, self._lines[-1]):
                return self._lines[-1]
        raise AssertionError(f"it ended without '{pattern}':\n{self.wait().text}")

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def take_minutes(self) -> None:
        """Disable the watchdog for this process, which may take minutes."""
        self._watchdog.cancel()

    def end(self) -> None:
        """Kill it if it runs, and close its files."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.wait()

    def wait(self) -> Result:
        """Read the output to its end, and return the result."""
        self._lines += [raw.decode() for raw in self.popen.stdout]
        status = self.popen.wait()
        self._watchdog.cancel()
        self._error_reader.join()
        self.popen.stdout.close()
        return Result(status, "".join(self._lines), "".join(self._errors))

    def _read_errors(self) -> None:
        with self.popen.stderr as lines:
            self._errors += [line.decode(errors="replace") for line in lines]
