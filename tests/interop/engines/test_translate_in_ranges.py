"""`towernmt translate --workers`, whose processes are killed: the output is that of one undisturbed process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.run_command import run_command
from tests.waiting import PATIENCE, has_ended, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]

LINES = 4_000
KILLS = 3


def command(run: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "towernmt", "translate", "--engine", "ctranslate2", "--model", str(run), "--window",
            "250", "--batch-sentences", "16", "--n-best", "2", "--input", "in", "--output", *options]


def started(run: Path, place: Path, *options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(run, *options), cwd=place, stderr=subprocess.PIPE, env=environment)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes that it started, except the resource tracker."""
    workers = []
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):       # it has ended in the meantime
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                workers.append(int(child))
    return workers


def ranges_done(place: Path) -> int:
    return len(list(place.glob("out.ranges/ranges/*/done.json")))


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Wait for a condition; return False if the process ends before."""
    wait_until(lambda: process.poll() is not None or condition())
    return process.poll() is None


@pytest.fixture(scope="module")
def place(run_on_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, `in`, and its translation by this process, `one`."""
    folder = tmp_path_factory.mktemp("ranges")
    draws = np.random.default_rng(4)
    lengths = draws.integers(0, 12, LINES)
    (folder / "in").write_text("".join(" ".join(f"w{n}" for n in draws.integers(0, 16, length)) + "\n"
                                       for length in lengths))
    with chdir(folder):
        assert run_command(*command(run_on_disk, "one")[3:]) == 0
    return folder


def test_workers_and_the_command_itself_may_be_killed_at_any_moment(run_on_disk: Path, place: Path) -> None:
    draws, kills = random.Random(2), 0
    process = started(run_on_disk, place, "out", "--workers", "2")
    while kills < KILLS:
        done = ranges_done(place)
        if not until(lambda done=done: ranges_done(place) > done and workers_of(process), process):  # type: ignore
            break
        if workers := workers_of(process):      # one that has just ended is started again
            os.kill(draws.choice(workers), signal.SIGKILL)
            kills += 1
    workers = workers_of(process)
    process.kill()
    assert b"was lost with in lines" in process.communicate()[1] and kills == KILLS
    for worker in workers:      # they end with the command
        wait_until(lambda worker=worker: has_ended(worker))     # type: ignore
    assert not (place / "out").exists() and 0 < ranges_done(place) < LINES // 500
    process = started(run_on_disk, place, "out", "--workers", "1")
    told = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 0 and "resuming" in told and "4,000 of 4,000 lines" in told
    assert (place / "out").read_bytes() == (place / "one").read_bytes()
    assert sorted(path.name for path in place.iterdir()) == ["in", "one", "out"]


def test_after_sigterm_the_ranges_that_are_done_stay(run_on_disk: Path, place: Path) -> None:
    process = started(run_on_disk, place, "out2", "--workers", "2")
    assert until(lambda: len(list(place.glob("out2.ranges/ranges/*/done.json"))) > 1, process)
    process.terminate()
    told = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 128 + signal.SIGTERM and "out2.ranges contains the finished ranges" in told
    kept = len(list(place.glob("out2.ranges/ranges/*/done.json")))
    assert kept > 1
    two = [started(run_on_disk, place, "out2", "--workers", "1") for _ in range(2)]     # like on two machines
    assert [process.wait(PATIENCE) for process in two] == [0, 0]
    assert (place / "out2").read_bytes() == (place / "one").read_bytes()
    assert not list(place.glob("out2.*"))
