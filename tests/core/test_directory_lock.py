"""Two writers of one directory: the second is refused, until the first has ended in any way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from towernmt.core import directories
from towernmt.core.directories import LOCK_FILE, DirectoryLock
from towernmt.core.errors import DirectoryInUseError

HOLDER = """
import os, sys
from towernmt.core.directories import DirectoryLock
lock = DirectoryLock(sys.argv[1], "towernmt train")
lock.acquire()
if "fork" in sys.argv and os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
if "fork" not in sys.argv:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


def holder(directory: Path, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory), *options], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_the_error_of_a_second_process_names_the_holder_of_a_directory(tmp_path: Path) -> None:
    process = holder(tmp_path / "run")
    try:
        with pytest.raises(DirectoryInUseError) as caught:
            DirectoryLock(tmp_path / "run", "towernmt train").acquire()
    finally:
        process.communicate("")
    message = str(caught.value)
    assert f"process {process.pid} on " in message and "(towernmt train)" in message and " UTC" in message
    assert message.startswith(f"{tmp_path / 'run'} is in use: ") and "\n" not in message


def test_a_second_writer_may_wait_for_the_first(tmp_path: Path) -> None:
    first, second = (DirectoryLock(tmp_path, "towernmt train") for _ in range(2))
    first.acquire()
    with pytest.raises(DirectoryInUseError):
        second.acquire(timeout=0.01)
    waiting = threading.Thread(target=second.acquire, args=(60.0,))
    waiting.start()
    first.release()
    waiting.join()
    assert second.is_held
    second.release()


def test_a_long_wait_is_logged_once_with_the_lock_file_and_its_holder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(directories, "_POLL", 0.001)
    first, second = DirectoryLock(tmp_path, "export to CTranslate2"), DirectoryLock(tmp_path, "towernmt translate")
    with first, caplog.at_level("INFO", "towernmt"):
        with pytest.raises(DirectoryInUseError):
            second.acquire(timeout=0.05)
        assert caplog.messages == []
        monkeypatch.setattr(directories, "_LONG_WAIT", 0.01)
        with pytest.raises(DirectoryInUseError):
            second.acquire(timeout=0.05)
    [message] = caplog.messages
    assert message.startswith(f"Waiting for the lock {tmp_path / LOCK_FILE}: process {os.getpid()} on ")
    assert "(export to CTranslate2) has been writing there since" in message


def test_the_lock_of_a_killed_process_is_gone(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / LOCK_FILE).exists()
    with DirectoryLock(tmp_path, "towernmt train") as lock:
        assert lock.is_held


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    process = holder(tmp_path, "fork")
    process.kill()
    process.wait()
    with DirectoryLock(tmp_path, "towernmt train") as lock:
        assert lock.is_held
    process.communicate("")


def test_a_released_lock_leaves_no_file_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with DirectoryLock(tmp_path, "towernmt train"):
            assert os.listdir(tmp_path) == [LOCK_FILE]
        assert os.listdir(tmp_path) == []


def test_two_objects_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = (DirectoryLock(tmp_path, "towernmt train") for _ in range(2))
    with first:
        first.acquire()
        with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()} "):
            second.acquire()
    with second:
        assert second.is_held and not first.is_held


def test_another_writers_lock_in_a_directory_made_anew_is_left_alone(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path / "run", "towernmt train")
    first.acquire()
    assert first.in_place
    (tmp_path / "run").rename(tmp_path / "away")
    assert first.is_held and not first.in_place
    with DirectoryLock(tmp_path / "run", "towernmt train") as second:
        assert second.in_place and not first.in_place
        first.release()
        assert (tmp_path / "run" / LOCK_FILE).exists()
