"""The end of a process whose work is unfinished."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import PATIENCE
from towernmt.core import unfinished_work
from towernmt.core.unfinished_work import INTERRUPTED, end_without_waiting, start_background_thread

PROGRAM = """
import atexit, sys, threading
from towernmt.core.thread_maps import map_ahead
from towernmt.core.unfinished_work import end_without_waiting
begun = threading.Event()

def wait(number):
    if number:
        begun.set()
        threading.Event().wait()

atexit.register(print, "an exit function")
stream = map_ahead(wait, range(2), 2)
next(stream)
begun.wait()
if sys.argv[1:]:
    stream.close()
print("the output")
end_without_waiting(3)
"""


@pytest.mark.parametrize("options", [[], ["closed"]], ids=["open", "closed"])
def test_a_process_with_a_call_that_does_not_end_ends_with_its_status_and_exit_functions(options: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *options], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "the output\nan exit function\n", "")


class Ended(BaseException):
    """The end of the process."""


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Replace the end of the process, and return the event that ends the threads of the test."""
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(unfinished_work, "_end", end)
    monkeypatch.setattr(unfinished_work, "_unfinished", 0)
    release = threading.Event()
    yield release
    release.set()


def test_a_process_without_unfinished_work_does_not_end_here(release: threading.Event) -> None:
    release.set()
    start_background_thread(release.wait, "test")
    for status in (0, 1):
        end_without_waiting(status)


def test_a_command_waits_for_its_threads_in_the_background_but_not_after_ctrl_c(
        release: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    start_background_thread(release.wait, "test")
    with pytest.raises(Ended, match=str(INTERRUPTED)):
        end_without_waiting(INTERRUPTED)

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(Ended, match=str(INTERRUPTED)):
        patch.setattr(threading.Thread, "join", interrupted)
        end_without_waiting(0)
    threading.Timer(0, release.set).start()
    end_without_waiting(0)


def test_unfinished_work_ends_the_process_after_the_threads_in_the_background(release: threading.Event) -> None:
    release.set()
    start_background_thread(release.wait, "test")
    with pytest.raises(KeyError), unfinished_work.unfinished_work():
        raise KeyError
    with pytest.raises(Ended, match="141"):
        end_without_waiting(141)
