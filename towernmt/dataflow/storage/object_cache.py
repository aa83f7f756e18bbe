"""A bounded folder of copies of remote files, shared by any number of threads and processes.

```
NAME            a complete copy; its modification time is the time of its last use
NAME.tmp        an unfinished copy, of its full size from the start; its writer holds a lock on it
lock            held while copies are removed to make space
```

A complete copy appears by a rename. The least recently used copy is removed first. Readers hold no lock: a file that
is open or memory-mapped stays readable after it is unlinked (POSIX), and the disk space is free when the last reader
closes it. So the folder may exceed its limit by the files that are mapped at the moment. Locks are those of `flock`:
they end with the process that held them, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import CACHE_VARIABLE, flush_to_disk, user_cache

DEFAULT_GB = 10.0
SIZE_VARIABLE = "TOWERNMT_CACHE_GB"
PATIENCE_SECONDS = 900.0    # longer than the two requests of a fetch are retried without progress (2 x 415 s)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNFINISHED_SUFFIX = ".tmp"
_LOCK_NAME = "lock"
_COPY_NAME = re.compile(rf"[0-9a-f]{{64}}({re.escape(_UNFINISHED_SUFFIX)})?")


class ObjectCache:
    """The copies in one folder.

    Args:
        directory: the folder, which is created if missing. Other files in it are ignored.
        limit_bytes: maximum total size of the copies in bytes.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes

    def open(self, name: str, version: str, size: int, fetch: Callable[[BinaryIO], None]) -> BinaryIO:
        """Return the copy of a file, open for reading. A missing copy is fetched.

        While one thread or process fetches a file, others that open the same file wait for it.

        Args:
            name: name of the file.
            version: version of the file. The same name and version stand for the same content.
            size: size in bytes.
            fetch: called with an open file; writes the content into it, or raises.

        Raises:
            DataError: the disk is full, or the limit too small for this file.
            Exception: an exception of `fetch`; the unfinished copy is then removed.
        """
        path = self._path(name, version)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            while True:
                if (copy := _open_and_touch(path)) is not None:
                    return copy
                with _locked(path.with_name(path.name + _UNFINISHED_SUFFIX)) as unfinished:
                    if not _is_linked(unfinished):      # the previous holder of the lock has finished or failed
                        continue
                    if path.exists():
                        os.unlink(unfinished.name)
                        continue
                    return self._fetch(name, path, unfinished, size, fetch)
        except OSError as error:
            raise self._explain(error, name, size) from error

    def discard(self, name: str, version: str) -> None:
        """Remove a copy, since it is damaged."""
        self._path(name, version).unlink(missing_ok=True)

    def bytes(self) -> int:
        """Return the total size of all copies, including unfinished ones."""
        return sum(size for _, size, _ in self._files())

    def _path(self, name: str, version: str) -> Path:
        return self.directory / hashlib.sha256(f"{name}\0{version}".encode()).hexdigest()

    def _fetch(self, name: str, path: Path, unfinished: BinaryIO, size: int, fetch: Callable[[BinaryIO], None]
               ) -> BinaryIO:
        try:
            unfinished.truncate(0)      # a killed writer may have left content
            self._reserve(name, unfinished, size)
            fetch(unfinished)
            unfinished.flush()
            os.fsync(unfinished.fileno())
            # Opened before other processes can see the copy and remove it.
            finished = open(unfinished.name, "rb")
            os.replace(unfinished.name, path)
        except BaseException:
            Path(unfinished.name).unlink(missing_ok=True)
            raise
        flush_to_disk(self.directory)
        return finished

    def _reserve(self, name: str, unfinished: BinaryIO, size: int) -> None:
        """Free and allocate `size` bytes in the cache and on the disk: a full disk is noticed before the download."""
        if size > self.limit_bytes:
            raise DataError(f"{name}: {size:,} bytes do not fit into the cache {self.directory}, which is limited to "
                            f"{self.limit_bytes:,} bytes. Increase {SIZE_VARIABLE} (gigabytes), or prepare with "
                            "smaller --shard-pairs.")
        while True:
            with _locked(self.directory / _LOCK_NAME):
                blocking_copy = self._free_space(size, unfinished.name)
                if blocking_copy is None:
                    self._allocate(unfinished, size)
                    return
            # Only unfinished copies are left. A writer that has allocated its space waits for no other, so one of them
            # will finish.
            with contextlib.suppress(FileNotFoundError), open(blocking_copy, "rb") as copy:
                _wait_for_lock(copy, "LOCK_SH")

    def _free_space(self, size: int, own_path: str) -> str | None:
        """Unlink old copies until `size` bytes are free. If that fails, return an unfinished copy to wait for."""
        files = [file for file in sorted(self._files()) if str(file[2]) != own_path]
        total = sum(length for _, length, _ in files)
        waiting = None
        for _, length, path in files:
            if total + size <= self.limit_bytes:
                return None
            if not path.name.endswith(_UNFINISHED_SUFFIX):
                path.unlink(missing_ok=True)
            elif not _remove_abandoned(path):
                waiting = str(path) if length else waiting
                continue
            total -= length
        return None if total + size <= self.limit_bytes else waiting

    def _allocate(self, unfinished: BinaryIO, size: int) -> None:
        """Allocate `size` bytes on the disk. Unlink old copies if the disk is full before the limit is reached."""
        old = [path for _, _, path in sorted(self._files()) if not path.name.endswith(_UNFINISHED_SUFFIX)]
        while True:
            try:
                if not hasattr(os, "posix_fallocate"):      # on macOS
                    os.ftruncate(unfinished.fileno(), size)
                elif size:
                    os.posix_fallocate(unfinished.fileno(), 0, size)
                return
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):     # then a full disk is noticed while writing
                    os.ftruncate(unfinished.fileno(), size)
                    return
                if error.errno not in _DISK_FULL or not old:
                    raise
                old.pop(0).unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield (last use in ns, bytes, path) of each copy."""
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if _COPY_NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        yield status.st_mtime_ns, status.st_size, Path(entry.path)

    def _explain(self, error: OSError, name: str, size: int) -> DataError:
        if error.errno in _DISK_FULL:
            return DataError(f"{self.directory}: the disk is full; {size:,} bytes for {name} do not fit. Free space, "
                             f"or set {CACHE_VARIABLE} to a folder on another disk.")
        return DataError(f"{self.directory}: the cache of {name} cannot be used ({error.strerror}). Check the folder, "
                         f"or set {CACHE_VARIABLE} to another folder.")


def default_cache() -> ObjectCache:
    """Return the cache of the environment variables `TOWERNMT_CACHE` (a folder) and `TOWERNMT_CACHE_GB` (10^9 bytes).

    Raises:
        SettingsError: `TOWERNMT_CACHE_GB` is not a positive number.
    """
    text = os.environ.get(SIZE_VARIABLE, "")
    try:
        gigabytes = float(text) if text else DEFAULT_GB
    except ValueError:
        gigabytes = -1.0
    if not 0 < gigabytes * 1e9 < float("inf"):
        raise SettingsError(f"{SIZE_VARIABLE}={text}: expected a positive number, the size of the cache in gigabytes "
                            f"(default: {DEFAULT_GB:g}).")
    return ObjectCache(user_cache() / "objects", int(gigabytes * 1e9))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Yield the file, created if missing, open and locked for this thread."""
    with open(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666)) as file:
        _wait_for_lock(file, "LOCK_EX")
        try:
            yield file
        finally:
            _flock(file, "LOCK_UN")     # closing is not enough if a child process has the file open, too


def _flock(file: BinaryIO, *operations: str) -> None:
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise SettingsError("Prepared data in S3 are read through a cache on the disk, which needs file locks (flock) "
                            "that this operating system lacks. Copy the data to a directory, and pass that.") from error
    fcntl.flock(file, sum(getattr(fcntl, operation) for operation in operations))


def _wait_for_lock(file: BinaryIO, operation: str) -> None:
    """Wait for a lock as long as the other process writes the file, and `PATIENCE_SECONDS` more.

    Raises:
        DataError: the other process has stopped writing.
    """
    pause, last_modified, progress_time = 0.005, -1, time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            _flock(file, operation, "LOCK_NB")
            return
        if (modified := os.fstat(file.fileno()).st_mtime_ns) != last_modified:
            last_modified, progress_time = modified, time.monotonic()
        elif time.monotonic() - progress_time > PATIENCE_SECONDS:
            raise DataError(f"{file.name}: another process has locked this file of the cache and has not written to it "
                            f"for {PATIENCE_SECONDS:g} s. End that process (`fuser {file.name}` names it), or set "
                            f"{CACHE_VARIABLE} to another folder.")
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def _is_linked(file: BinaryIO) -> bool:
    """Return whether the name of the open file still refers to it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> bool:
    """Unlink an unfinished copy if its writer was killed, so that no process holds its lock. Return success."""
    try:
        with open(path, "rb") as file:
            _flock(file, "LOCK_EX", "LOCK_NB")
            if _is_linked(file):    # under the lock: a process that waits for it then sees that the file is unlinked
                path.unlink()
            return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False


def _open_and_touch(path: Path) -> BinaryIO | None:
    """Open an existing copy and mark it as used now, or return None."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):      # a copy of another user or on a read-only disk keeps its time of last use
        os.utime(file.fileno())
    return file
