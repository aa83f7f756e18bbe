"""Nothing fails at import where the operating system is not Unix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Load the Unix modules that other libraries need before they are removed.
PROGRAM = r"""
import importlib, multiprocessing.pool, os, pkgutil, select, signal, sys
import numpy, rich.live, sacrebleu, sentencepiece, tensorflow, tensorpack, tensorpack.callbacks, tensorpack.train, yaml

for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"):
    sys.modules[name] = None
for owner, names in ((os, "fork register_at_fork O_DIRECTORY O_NOFOLLOW getuid geteuid sched_getaffinity uname pread"),
                     (signal, "SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 pthread_sigmask"), (select, "poll epoll")):
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)
import towernmt

failed = []
for module in pkgutil.walk_packages(towernmt.__path__, "towernmt."):
    try:
        importlib.import_module(module.name)
    except Exception as error:
        failed.append(f"{module.name}: {error!r}")
sys.exit("\n".join(failed) or 0)
"""


@pytest.mark.thorough
def test_every_module_is_imported_without_what_only_unix_has() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr[-2000:] if ended.returncode else "") == (0, "")
