"""A server program in a new folder, on a free loopback port, as a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_ports
from tests.waiting import PATIENCE


def not_installed(sentence: str) -> None:
    """Skip the test, or fail it where all programs must be installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


class LocalServer:
    """A server that can be started, stopped and restarted; `close` removes the folder of its data."""

    quick_stop = signal.SIGTERM
    crash = signal.SIGKILL

    def __init__(self, name: str, *users: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"towernmt-{name}-"))
        [self.port] = free_ports(1)
        self._identity: dict[str, Any] = {}
        if os.getuid() == 0:
            known = {entry.pw_name: entry for entry in pwd.getpwall()}
            entry = next(known[user] for user in (*users, "nobody") if user in known)
            self._identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        with (self.folder.with_name(self.folder.name + ".log")).open("ab") as log:
            self._process = subprocess.Popen(self.command(), cwd="/", stdout=log, stderr=log,
                                             stdin=subprocess.DEVNULL, **self._identity)
        self._wait_for(self.is_ready)

    def stop(self, how: signal.Signals | None = None) -> None:
        if self._process is not None:
            self._process.send_signal(how or self.quick_stop)
            self._process.wait(PATIENCE)
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.with_name(self.folder.name + ".log").unlink(missing_ok=True)

    def _run(self, command: list[str], text: bytes = b"") -> None:
        done = subprocess.run(command, input=text, capture_output=True, cwd="/", timeout=PATIENCE, check=False,
                              **self._identity)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stdout.decode()} {done.stderr.decode()}")

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(self.folder.with_name(self.folder.name + ".log").read_text(errors="replace"))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.command()[0]} is not ready after {PATIENCE:.0f} s")
            time.sleep(0.02)
