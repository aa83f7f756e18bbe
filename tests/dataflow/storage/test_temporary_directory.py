"""Temporary directories: gone at the end, at a signal, and at the next start after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.core.directories import DirectoryLock
from towernmt.dataflow.storage.temporary_directories import temporary_directory

HOLDER = """
import sys
from towernmt.dataflow.storage.temporary_directories import temporary_directory
with temporary_directory("a test") as directory:
    (directory / "file").write_text("content")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, None])
def test_nothing_is_left(number: signal.Signals | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    directory = Path(process.stdout.readline().strip())
    with temporary_directory("a test") as other:      # takes nothing from a process that lives
        assert other.is_dir() and (directory / "file").read_text() == "content"
    if number is not None:
        process.send_signal(number)
        process.wait()
    process.communicate("")
    assert directory.exists() == (number == signal.SIGKILL)
    with temporary_directory("a test"):
        assert not directory.exists()
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
            shutil.rmtree(removed[0])       # what the other process does, between mkdtemp and the lock
        return lock(path, *arguments, **more)

    monkeypatch.setattr(f"{DirectoryLock.__module__}.os.open", removing)
    with temporary_directory("a test", tmp_path) as directory:
        assert removed and directory.is_dir() and directory.parent not in removed
