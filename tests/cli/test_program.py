"""The command line as a Python module: `python -m towernmt`."""

from __future__ import annotations

import subprocess
import sys

from towernmt import __version__


def test_python_runs_the_package_as_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "towernmt", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and __version__ in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "towernmt", "trian"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "did you mean train?" in wrong.stderr
