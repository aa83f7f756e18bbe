"""A temporary directory that is removed when its process ends, or, if that was killed, by the next process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from towernmt.core.errors import DirectoryInUseError
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.core.terminal.ending_signals import cleaned_up

_PREFIX = "towernmt-scratch-"


@contextmanager
def temporary_directory(activity: str, parent: Path | None = None) -> Iterator[Path]:
    """A new directory, removed when the block ends, or when SIGTERM or SIGHUP ends the process.

    Directories that killed processes of this user left there are removed first.

    Args:
        activity: what is done there, for the lock.
        parent: where; None: where temporary files are (`TMPDIR` says on which disk).
    """
    parent = parent or Path(tempfile.gettempdir())
    for path in parent.glob(f"{_PREFIX}*"):
        _remove_abandoned(path)
    lock = _locked_directory(activity, parent)
    try:
        with cleaned_up(lambda: shutil.rmtree(lock.directory, ignore_errors=True)):
            inside = lock.directory / "content"
            inside.mkdir()
            yield inside
    finally:
        shutil.rmtree(lock.directory, ignore_errors=True)
        lock.release()


def _locked_directory(activity: str, parent: Path) -> DirectoryLock:
    while True:
        lock = DirectoryLock(tempfile.mkdtemp(prefix=_PREFIX, dir=parent), activity)
        try:
            lock.acquire()
            return lock
        except (DirectoryInUseError, FileNotFoundError):    # another process took it for abandoned before it was locked
            continue


def _remove_abandoned(path: Path) -> None:
    try:
        if path.is_symlink() or (hasattr(os, "getuid") and path.lstat().st_uid != os.getuid()):
            return
        with DirectoryLock(path, "removing what was abandoned"):
            shutil.rmtree(path, ignore_errors=True)
    except (DirectoryInUseError, FileNotFoundError):
        return      # its process lives; or another one has just removed it
