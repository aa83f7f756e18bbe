"""Files that are either complete or missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from towernmt.core.files import replacing, write_text


def test_a_written_file_has_the_text_and_no_temporary_file_remains(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_text(path, "eins\nzwei ä\r\n")
    assert path.read_bytes() == "eins\nzwei ä\r\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_writing_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_a_killed_process_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.tmp").write_text("half of something")
    write_text(path, "whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_keeps_its_owner_and_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    if os.geteuid() == 0:       # as an administrator who changes a file of a server
        os.chown(path, 1, 2)
    path.chmod(0o460)
    old = path.stat()
    write_text(path, "new")
    new = path.stat()
    assert path.read_text() == "new"
    assert (new.st_mode, new.st_uid, new.st_gid) == (old.st_mode, old.st_uid, old.st_gid)


def test_writers_at_the_same_time_leave_the_whole_file_of_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as first:
        first.write(b"first " * 100_000)
        for text in ("second", "third"):        # as other processes do
            write_text(path, text)
            assert path.read_text() == text
        first.write(b"end")
    assert path.read_bytes() == b"first " * 100_000 + b"end"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", without_locks)
    write_text(tmp_path / "file", "text")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "text")]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe or a device cannot be replaced"):
        write_text(pipe, "text")
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]
