"""Allow one writer per directory, and recognise the directories that commands create.

A directory is locked by a lock of the operating system, which is released when its process ends. The lock is on the
file `.towernmt.lock`, which names the owner. A file that a killed process left there locks nothing. Readers need no
lock.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from towernmt.core.errors import DirectoryInUseError, SettingsError

logger = logging.getLogger(__name__)

LOCK_FILE = ".towernmt.lock"
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_POLL = 0.1     # seconds
_LONG_WAIT = 3.0    # seconds of waiting after which it is logged
_WINDOWS_BYTE = 1 << 30  # Windows does not let others read locked bytes: lock one after the text

_locked_descriptors: set[int] = set()  # descriptors of this process


class DirectoryLock:
    """Lock that prevents other processes and threads from writing to a directory.

        with DirectoryLock("runs/de-en", "towernmt train"):
            ...

    Args:
        directory: path of the directory.
        activity: description of the work, shown to a process that is refused; must not contain secrets.
        make: whether `acquire` makes a directory that is missing.

    Attributes:
        directory: path of the directory.
        enforced: whether the file system has locks; without them, the lock stops nobody.
    """

    def __init__(self, directory: str | Path, activity: str, make: bool = True) -> None:
        self.directory, self._activity, self._make = Path(directory), activity, make
        self._path = self.directory / LOCK_FILE
        self._descriptor: int | None = None
        self.enforced = True

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    @property
    def in_place(self) -> bool:
        """Whether the lock is held and its directory was not moved or removed."""
        return self._descriptor is not None and _same_file(self._descriptor, self._path)

    def acquire(self, timeout: float = 0.0) -> None:
        """Acquire the lock. A wait of several seconds is logged once.

        Args:
            timeout: seconds to wait for another holder.

        Raises:
            DirectoryInUseError: another process holds it, or another object of this process; the message says which.
            OSError: the directory cannot be written, or it is missing and `make` is False.
        """
        start, is_logged = time.monotonic(), False
        while True:
            try:
                return self._acquire()
            except DirectoryInUseError as error:
                waited = time.monotonic() - start
                if waited >= timeout:
                    raise
                if waited >= _LONG_WAIT and not is_logged:
                    logger.info("Waiting for the lock %s: %s.", self._path, error.holder)
                    is_logged = True
                time.sleep(_POLL)

    def _acquire(self) -> None:
        if self._descriptor is not None:
            return
        if self._make:
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
        _locked_descriptors.add(descriptor)
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
        """Release the lock and remove its file. Does nothing if it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or descriptor not in _locked_descriptors:  # the latter in a forked child
            return
        try:
            if os.name != "nt" and _same_file(descriptor, self._path):  # Windows removes no file that is open
                self._path.unlink(missing_ok=True)
        finally:
            _locked_descriptors.discard(descriptor)
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
                self.enforced = False
                logger.warning("%s: this file system has no locks, so nothing keeps a second writer out.",
                               self.directory)
            elif error.errno in _BUSY:
                holder = _holder(descriptor)
                in_use = DirectoryInUseError(f"{self.directory} is in use: {holder}. Wait until that has ended, or use "
                                             "a different directory.")
                in_use.holder = holder
                raise in_use from None
            else:
                raise OSError(error.errno, error.strerror, str(self._path)) from error


def is_written(directory: str | Path) -> bool:
    """Return whether a running process of this machine has recorded that it writes to a directory.

    The lock itself is not tested: that would hold it for a moment, and a starting writer would be refused.
    """
    try:
        holder = json.loads((Path(directory) / LOCK_FILE).read_bytes())
        if holder["host"] != socket.gethostname() or sys.platform == "win32":   # there os.kill would end it
            return False
        os.kill(int(holder["process"]), 0)
    except PermissionError:     # it is running as a different user
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def lock_descriptor(descriptor: int) -> None:
    """Lock an open file exclusively until it is closed.

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


def try_lock(descriptor: int) -> bool:
    """Lock an open file exclusively until it is closed, and return whether no other process holds the lock.

    On a file system without locks, return True.
    """
    try:
        lock_descriptor(descriptor)
    except OSError as error:
        return error.errno not in _BUSY
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Return a description of the lock's holder; the file is empty for a moment after locking."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = json.loads(os.read(descriptor, 4096))
        return (f"process {holder['process']} on {holder['host']} ({holder['activity']}) has been writing there since "
                f"{holder['since']}")
    except (ValueError, KeyError, TypeError):
        return "another process is writing there"


def _forget_in_child() -> None:
    # A forked child shares the lock and would hold it beyond the end of the parent.
    for descriptor in _locked_descriptors:
        os.close(descriptor)
    _locked_descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


RUN, PREPARATION, EXPORT, PACKAGE = "a run", "prepared data", "an export", "an unpacked package"
CHECKPOINT, AVERAGES = "a checkpoint", "the averages of a run"
AVERAGES_FOLDER = "averages"
"""The folder of a run in which averaged checkpoints are written."""
PREPARING = ".preparing"
"""The folder in the directory of a preparation that is being made, or was interrupted."""

RUN_SETTINGS = "settings.yaml"
"""The settings of a run. A directory with such a file is a run if it also has checkpoints or a vocabulary."""
PREPARED_MANIFEST, PREPARED_FORMAT = "manifest.json", "towernmt-prepared"
"""The file that describes prepared data, and what it names as its format."""
EXPORT_DESCRIPTION = "towernmt.json"
"""The file that describes an export: format, precision, where it comes from, how to search."""
PACKAGE_MANIFEST = "towernmt-package.json"
"""The file that describes a package."""
MONOLINGUAL_RECORD = Path("monolingual", "record.json")
"""The file of a run that was begun with monolingual text; see `towernmt.jobs.monolingual_training`."""


def is_export(directory: str | Path) -> bool:
    """Return whether a directory is an export, in any format."""
    return (Path(directory) / EXPORT_DESCRIPTION).is_file()


def directory_kind(directory: Path) -> str | None:
    """Return the kind of a directory that a command created (run, preparation, export, ...), or None."""
    try:
        if not directory.is_dir():
            return None
        manifest = directory / PREPARED_MANIFEST
        if manifest.is_file() and PREPARED_FORMAT.encode() in manifest.read_bytes():
            return PREPARATION
        if (directory / PREPARING).is_dir():
            return PREPARATION
        if (directory / PACKAGE_MANIFEST).is_file():
            return PACKAGE
        if (directory / RUN_SETTINGS).is_file() and any(
                (directory / name).is_dir() for name in ("checkpoints", "vocabulary")):
            return RUN
        checkpoints = directory / "checkpoints"     # of a run whose settings were removed
        if checkpoints.is_dir() and any(checkpoints.glob("step-*/model.index")):
            return RUN
        if (directory / "model.index").is_file() and (directory / "state.json").is_file():
            return CHECKPOINT
        return EXPORT if is_export(directory) else None
    except OSError:     # a directory that cannot be read cannot be written either, and the writer reports that
        return None


def refuse_foreign_directory(output: str, path: Path, owned: Collection[str] = ()) -> None:
    """Refuse to write into a run, a preparation, an export, a checkpoint or an unpacked package.

    Args:
        output: what the user calls it, for the message.
        path: the resolved path of the file or directory that would be written.
        owned: kinds that `path` itself may be; with `AVERAGES`, it may also lie in the averages of a run.

    Raises:
        SettingsError: it is such a directory, or lies in one.
    """
    for directory in (path, *path.parents):
        kind = directory_kind(directory)
        if kind is None or (directory == path and kind in owned):
            continue
        if not (kind == RUN and AVERAGES in owned and directory / AVERAGES_FOLDER in (path, *path.parents)):
            raise SettingsError(f"{output} lies in {kind} ({directory}) and would damage it: write to a different "
                                "path.")
