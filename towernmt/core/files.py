"""Write files atomically, verify them by checksums, check file names from outside, and find the user's cache.

An atomic file is written under a temporary name, flushed to the disk and renamed. A process that is killed at any
moment leaves the old file or the new one, and perhaps `NAME.tmp` next to it, which the next write replaces. A lock on
`NAME.tmp` keeps other processes out, which write to another temporary file. The last one to end replaces the file. The
new file has the owner and the permissions of the old one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from towernmt.core.directories import PACKAGE_MANIFEST, try_lock
from towernmt.core.errors import DataError
from towernmt.core.structured_files import read_json


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text in UTF-8 without converting line ends.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` if the block ends without an exception.

    The directory is created if needed.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "a pipe or a device cannot be replaced by a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished, file = _open_unfinished(path)
    try:
        with naming(path), file:
            copy_access(path, unfinished)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name != "nt":     # Windows renames no file that is open
                unfinished.replace(path)
        if os.name == "nt":
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


def copy_access(old: Path, new: Path) -> None:
    """Give a new file the owner, the group and the permissions of the file that it replaces, if the latter exists.

    Otherwise, a file that root changes could no longer be read by the server that it belongs to. If the process may not
    give the file to this owner, the owner and the permissions of the new file do not change.
    """
    if not old.is_file():
        return
    with suppress(OSError):
        if os.name != "nt":
            status = old.stat()
            os.chown(new, status.st_uid, status.st_gid)
        shutil.copymode(old, new)


def _open_unfinished(path: Path) -> tuple[Path, BinaryIO]:
    """Open an empty file next to `path`, to which no other process or thread writes."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        return unfinished, open(unfinished, "wb", opener=_open_locked)
    except (BlockingIOError, PermissionError) as error:
        # Another process writes the file, or a killed process of another user has left it.
        if isinstance(error, PermissionError) and not unfinished.exists():
            raise
        unfinished = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        return unfinished, unfinished.open("wb")


def _open_locked(name: str, flags: int) -> int:
    """Open a file under a lock, and empty it.

    Raises:
        BlockingIOError: another process or thread writes the file.
    """
    descriptor = os.open(name, flags & ~os.O_TRUNC, 0o666)
    try:
        if not try_lock(descriptor):
            raise BlockingIOError(errno.EAGAIN, "another process writes the file", name)
        if not os.path.exists(name) or not os.path.samestat(os.fstat(descriptor), os.stat(name)):
            raise BlockingIOError(errno.EAGAIN, "another process has just renamed the file", name)
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file name to errors of a full disk, which the operating system leaves out."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
            error.filename = str(path)
        raise


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk; Windows cannot flush directories."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


CHECKSUMS = "checksums.json"
"""The file: the path of each other file below the directory, and its SHA-256."""


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; "" if it cannot be read."""
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return ""


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files below a directory, to be called when its content is complete.

    Raises:
        OSError: the file cannot be written.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / CHECKSUMS)
    sums = {path.relative_to(directory).as_posix(): sha256_of(path) for path in files}
    write_text(directory / CHECKSUMS, json.dumps(sums, indent=1) + "\n")


def is_undamaged(directory: Path) -> bool:
    """Return whether a directory has checksums and each file still matches its own; every file is read."""
    try:
        sums = read_json(directory / CHECKSUMS, dict[str, str], "")
    except DataError:
        return False
    return all(sha256_of(directory / name) == digest for name, digest in sums.items())


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def checked_name(name: str, origin: str) -> str:
    """Return a file name after checking that it lies below a directory; its separator is "/".

    Args:
        name: for example "shard-00000.pairs", or "vocabulary/source.model".
        origin: what names the file, for the message.

    Raises:
        DataError: it is empty, absolute, has a drive or a backslash, goes up (".."), or holds control characters.
    """
    goes_outside = any(component in ("", ".", "..") for component in name.split("/"))
    if goes_outside or "\\" in name or ":" in name or _CONTROL.search(name):
        raise DataError(f"{origin} names the file {name[:200]!r}, which may lie outside its directory: do not use it, "
                        "and ask where it comes from.")
    return name


def path_inside(directory: str | Path, name: str, origin: str) -> Path:
    """Return the path of a file to write below a directory; links must not lead out of it.

    Raises:
        DataError: see `checked_name`; or a link is in its way.
    """
    path = Path(directory) / checked_name(name, origin)
    if not path.resolve().is_relative_to(Path(directory).resolve()):
        raise DataError(f"{origin} names the file {name!r}, but {path} leads out of {directory} by a link: remove the "
                        "link.")
    return path


DAMAGED_ZIP = (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error,
               UnicodeDecodeError, OverflowError)
"""Exceptions of `zipfile` at a file that is damaged or not a zip file."""


def has_package_manifest(file: str | Path) -> bool:
    """Return whether a file is a zip file with the manifest of a package, unlike other zip files such as documents."""
    try:
        with zipfile.ZipFile(file) as archive:
            return PACKAGE_MANIFEST in archive.namelist()
    except (OSError, *DAMAGED_ZIP):
        return False


def fixed_entry(name: str, compression: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    """Return a reproducible zip entry: the earliest possible time, and a plain file readable by all."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.create_system, entry.external_attr = compression, 3, 0o100644 << 16
    return entry


CACHE_VARIABLE = "TOWERNMT_CACHE"


def user_cache() -> Path:
    """Return the cache directory, created or not: `TOWERNMT_CACHE` or `towernmt` in `XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        RuntimeError: none of them is set, and the user has no home.
    """
    configured = os.environ.get(CACHE_VARIABLE)
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towernmt"
