"""One writer a directory: a lock of the operating system, which is released when its process ends.

The lock is held on the file `.towernmt.lock` in the directory, which says who holds it. A file that a killed process
left there locks nothing. Readers need no lock.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

from towernmt.core.errors import DirectoryInUseError

logger = logging.getLogger(__name__)

LOCK_FILE = ".towernmt.lock"
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_WINDOWS_BYTE = 1 << 30  # Windows does not let others read locked bytes: lock one after the text

_held: set[int] = set()  # descriptors of this process


class DirectoryLock:
    """Keeps other processes, and other threads of this one, from writing into a directory.

        with DirectoryLock("runs/de-en", "towernmt train"):
            ...

    Args:
        directory: made if it is not there.
        activity: what is done there, for whoever comes second; nothing secret.
    Attributes:
        directory: the same.
    """

    def __init__(self, directory: str | Path, activity: str) -> None:
        self.directory, self._activity = Path(directory), activity
        self._path = self.directory / LOCK_FILE
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    @property
    def in_place(self) -> bool:
        """Whether it is held, and in the directory that has its name now: that one was not moved away or removed."""
        return self._descriptor is not None and _same_file(self._descriptor, self._path)

    def acquire(self) -> None:
        """Take the lock, or be refused at once.

        Raises:
            DirectoryInUseError: another process holds it, or another object of this process; the message says which.
            OSError: the directory cannot be written.
        """
        if self._descriptor is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._lock(descriptor)
                if _same_file(descriptor, self._path):  # if not, its holder removed it after we opened it
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        _held.add(descriptor)
        self._descriptor = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({
                "process": os.getpid(), "host": socket.gethostname(), "activity": self._activity,
                "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}).encode())
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the lock back, and remove its file. Nothing happens if it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or descriptor not in _held:  # the latter in a forked child
            return
        try:
            if os.name != "nt" and _same_file(descriptor, self._path):  # Windows removes no file that is open
                self._path.unlink(missing_ok=True)
        finally:
            _held.discard(descriptor)
            os.close(descriptor)

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.release()

    def _lock(self, descriptor: int) -> None:
        try:
            lock_descriptor(descriptor)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                logger.warning("%s: this file system has no locks, so nothing keeps a second writer out.",
                               self.directory)
            elif error.errno in _BUSY:
                raise DirectoryInUseError(f"{self.directory} is in use: {_holder(descriptor)}. Wait until that has "
                                          "ended, or take another directory.") from None
            else:
                raise OSError(error.errno, error.strerror, str(self._path)) from error


def is_written(directory: str | Path) -> bool:
    """Whether a living process of this machine says that it writes into a directory.

    It is not asked of the lock itself, which would be held for a moment, and a writer that begins would be refused.
    """
    try:
        holder = json.loads((Path(directory) / LOCK_FILE).read_bytes())
        if holder["host"] != socket.gethostname() or sys.platform == "win32":   # there os.kill would end it
            return False
        os.kill(int(holder["process"]), 0)
    except PermissionError:     # it lives, and is another user's
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def lock_descriptor(descriptor: int) -> None:
    """Lock an open file for this process alone, until it is closed.

    Raises:
        OSError: another process holds it, or the file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, _WINDOWS_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Who holds the lock, in words; the file is empty for a moment after it was taken."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = json.loads(os.read(descriptor, 4096))
        return (f"process {holder['process']} on {holder['host']} ({holder['activity']}) has been writing there since "
                f"{holder['since']}")
    except (ValueError, KeyError, TypeError):
        return "another process is writing there"


def _forget_in_child() -> None:
    # A forked child shares the parent's lock, and would keep it after the parent's end.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
