"""Temporary directories: removed at the end, renamed when complete, or resumed by the next process.

If a process is killed, the next process removes its temporary directory. `resumable_directory` keeps it instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.machine import cleanup_on_signal

_PREFIX = "towernmt-scratch-"


@contextmanager
def temporary_directory(activity: str, parent: Path | None = None,
                        end_work: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a new directory, which is removed when the block ends, or when SIGTERM or SIGHUP ends the process.

    Directories of killed processes of this user are removed first.

    Args:
        activity: description of the work in the directory, for messages about its lock.
        parent: parent directory; None for the directory of temporary files (`TMPDIR`).
        end_work: called before a signal removes the directory, for example to end a process that writes into it.
    """
    scratch = ScratchDirectory(activity, parent)

    def clean() -> None:
        end_work()
        scratch.remove_content()

    try:
        with cleanup_on_signal(clean):
            yield scratch.path
    finally:
        scratch.remove()


class ScratchDirectory:
    """A new directory, which exists until `remove` is called.

    Directories of killed processes of this user are removed first.

    Args:
        activity: description of the work in the directory, for messages about its lock.
        parent: parent directory; None for the directory of temporary files (`TMPDIR`).

    Attributes:
        path: the directory.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, activity: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        for path in parent.glob(f"{_PREFIX}*"):
            _remove_abandoned(path)
        self._lock, self._process = _locked_directory(activity, parent), os.getpid()
        self.path = self._lock.directory / "content"
        self.path.mkdir()

    def remove(self) -> None:
        """Remove the directory. A forked child does nothing."""
        if self._process == os.getpid():
            self.remove_content()
            self._lock.release()

    def remove_content(self) -> None:
        """Remove the directory, and keep its lock."""
        shutil.rmtree(self._lock.directory, ignore_errors=True)


def is_empty(directory: Path) -> bool:
    """Return whether a directory contains nothing, apart from temporary directories of running or killed processes."""
    return all(path.name.startswith(_PREFIX) for path in directory.iterdir())


def _locked_directory(activity: str, parent: Path) -> DirectoryLock:
    while True:
        lock = DirectoryLock(tempfile.mkdtemp(prefix=_PREFIX, dir=parent), activity)
        try:
            lock.acquire()
            return lock
        except (DirectoryInUseError, FileNotFoundError):    # another process removed it before it was locked
            continue


def _remove_abandoned(path: Path) -> None:
    try:
        if path.is_symlink() or (hasattr(os, "getuid") and path.lstat().st_uid != os.getuid()):
            return
        with DirectoryLock(path, "removing an abandoned directory") as lock:
            if lock.enforced:       # without locks, its process may still be running
                shutil.rmtree(path, ignore_errors=True)
    except (DirectoryInUseError, FileNotFoundError):
        return      # its process is running, or another process has just removed it


@contextmanager
def complete_directory(path: Path, activity: str) -> Iterator[Path]:
    """Yield a temporary directory next to `path`, which is renamed to it if the block ends without an exception.

    If another process was faster, its directory stays.

    Args:
        path: the new directory, whose parent exists.
        activity: description of the work in the directory, for messages about its lock.

    Raises:
        OSError: the directory cannot be made or renamed.
    """
    with temporary_directory(activity, path.parent) as unfinished:
        yield unfinished
        try:
            unfinished.rename(path)
        except OSError:
            if not path.is_dir():
                raise


@contextmanager
def resumable_directory(purpose: str, activity: str) -> Iterator[Path]:
    """Yield a directory in `TMPDIR` that another process can find again by its purpose.

    It is removed when the block ends, but kept if an exception ends the block and it has content.

    Args:
        purpose: identifies the directory: the same text leads to the same directory.
        activity: description of the work in the directory, for messages about its lock.

    Raises:
        DirectoryInUseError: another process works in the directory.
        DataError: the directory belongs to another user.
    """
    path = Path(tempfile.gettempdir()) / f"towernmt-kept-{hashlib.sha256(purpose.encode()).hexdigest()[:16]}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or (hasattr(os, "getuid") and path.lstat().st_uid != os.getuid()):
        raise DataError(f"{path} belongs to another user. Remove it, or set TMPDIR to a directory of yours.")
    with DirectoryLock(path, activity):
        content = path / "content"
        content.mkdir(exist_ok=True)
        try:
            yield content
        except BaseException:
            if not any(content.iterdir()):
                shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)
