"""Temporary directories are removed at the end, at a signal, and at the next start after a kill."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.core.directories import DirectoryLock
from towernmt.core.temporary_directories import ScratchDirectory, complete_directory, temporary_directory

HOLDER = """
import sys
from towernmt.core.temporary_directories import temporary_directory
with temporary_directory("a test") as directory:
    (directory / "file").write_text("content")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, None])
def test_no_directory_is_left_after_a_signal_or_after_the_next_start(
        number: signal.Signals | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    directory = Path(process.stdout.readline().strip())
    with temporary_directory("a test") as second_directory:      # removes nothing of a running process
        assert second_directory.is_dir() and (directory / "file").read_text() == "content"
    if number is not None:
        process.send_signal(number)
        process.wait()
    process.communicate("")
    assert directory.exists() == (number == signal.SIGKILL)
    with temporary_directory("a test"):
        assert not directory.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_next_process_removes_the_directory_of_an_object_of_a_killed_one(tmp_path: Path) -> None:
    code = ("import sys\nfrom towernmt.core.temporary_directories import ScratchDirectory\n"
            "scratch = ScratchDirectory('a test')\nprint(scratch.path, flush=True)\nsys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    directory = Path(process.stdout.readline().strip())
    ScratchDirectory("a test", tmp_path).remove()
    assert directory.is_dir()
    process.kill()
    process.communicate()
    assert directory.is_dir()
    ScratchDirectory("a test", tmp_path).remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
def test_a_forked_child_removes_nothing_of_its_parent(tmp_path: Path) -> None:
    scratch = ScratchDirectory("a test", tmp_path)
    if not (child := os.fork()):
        scratch.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.is_dir()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_links_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "towernmt-scratch-x").symlink_to(tmp_path / "mine")
    with temporary_directory("a test"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "towernmt-scratch-x"}


def test_a_directory_that_another_process_removes_before_it_is_locked_is_made_anew(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []
    lock = os.open

    def removing(path: Path, *arguments: int, **more: int) -> int:
        if not removed and Path(path).parent.name.startswith("towernmt-scratch-"):
            removed.append(Path(path).parent)
            shutil.rmtree(removed[0])       # the other process, between mkdtemp and the lock
        return lock(path, *arguments, **more)

    monkeypatch.setattr(f"{DirectoryLock.__module__}.os.open", removing)
    with temporary_directory("a test", tmp_path) as directory:
        assert removed and directory.is_dir() and directory.parent not in removed


def test_a_directory_of_another_process_is_kept_if_the_file_system_has_no_locks(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(f"{DirectoryLock.__module__}.lock_descriptor", without_locks)
    with temporary_directory("a test", tmp_path) as first, temporary_directory("a test", tmp_path) as second:
        assert first.is_dir() and second.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_complete_directory_gets_its_name(tmp_path: Path) -> None:
    with complete_directory(tmp_path / "made", "a test") as unfinished:
        (unfinished / "file").write_text("content")
        assert not (tmp_path / "made").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "file").read_text() == "content"


def test_a_directory_that_another_process_completed_first_is_kept(tmp_path: Path) -> None:
    with complete_directory(tmp_path / "made", "a test") as unfinished:
        (unfinished / "file").write_text("second")
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "file").write_text("first")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "file").read_text() == "first"


def test_an_incomplete_directory_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="halfway"), complete_directory(tmp_path / "made", "a test"):
        raise ValueError("halfway")
    assert list(tmp_path.iterdir()) == []
