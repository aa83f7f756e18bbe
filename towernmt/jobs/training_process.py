"""The program of a supervised training: `towernmt train`, which saves a checkpoint when its parent asks for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DirectoryInUseError
from towernmt.core.machine import processors, take_share

_PATIENCE = 60      # seconds that the former process may take to save and to end


def start_training(arguments: Sequence[str], output: Any, errors: Any, *, waits_for: Path | str = "",
                   share: int = 0, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a training in a process and a session of its own.

    Args:
        arguments: arguments of `towernmt`.
        output: destination of its standard output, as `subprocess` takes it.
        errors: destination of its standard error.
        waits_for: directory that another process may still write; the training waits for its lock. "" for none.
        share: number of processors that it may use; 0 for all.
        environment: additional environment variables.
    """
    return subprocess.Popen([sys.executable, "-m", __name__, str(waits_for), str(share), *arguments],
                            stdin=subprocess.PIPE, stdout=output, stderr=errors, start_new_session=True,
                            env={**os.environ, **(environment or {})})


def main(arguments: list[str]) -> int:
    """Train in a directory.

    Args:
        arguments: the directory to wait for, processors, and what `towernmt` gets.
    """
    from towernmt.__main__ import main as towernmt  # what a shell would start

    directory, share = arguments[0], int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # until the training takes it, it ends the process without a stack
    if hasattr(signal, "pthread_sigmask"):          # Ray blocks it in its processes, and so in those that they start
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_the_other, name="starter", daemon=True).start()
    if 0 < share < processors():
        take_share(share)
    if directory and Path(directory).is_dir():
        _wait_for_former_process(directory)
    return towernmt(arguments[2:])


def _end_with_the_other() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_former_process(directory: str) -> None:
    """Wait until no other process writes the run; if that takes too long, training will say so."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            with DirectoryLock(directory, "towernmt train"):
                return
        except DirectoryInUseError:
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
