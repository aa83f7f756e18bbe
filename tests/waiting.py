"""Wait for an event with a deadline."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 300.0
"""Seconds after which a process is taken to hang. On a busy machine, the import of TensorFlow alone takes a minute."""


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait until a condition holds; fail after `PATIENCE`.

    Args:
        condition: called again and again until its result is true.
        process: the process that makes the condition true; the wait fails when it ends.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:      # perhaps after it has made the condition true
            assert condition(), "the process ended before the condition was true"
            return
        assert time.monotonic() < end, f"the condition is not true after {PATIENCE:.0f} s"
        time.sleep(0.01)


def has_ended(process: int) -> bool:
    """Return whether the process with this identifier has ended, or is a zombie. Reads `/proc` of Linux."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
