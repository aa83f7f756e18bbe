"""Files that are whole or not there: written under another name, flushed to the disk, then renamed.

A process that is killed at any moment leaves the old file or the new one, and perhaps `NAME.tmp` next to it,
which the next writing replaces.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text, as UTF-8 with the line ends that the text has.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends without an exception.

    The directory is made if it is not there.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with naming(path), unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the name of the file into what is raised when the disk is full, where the operating system leaves it out."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
            error.filename = str(path)
        raise


def flush_to_disk(path: Path) -> None:
    """Return when a file's content, or a directory's list of names, is on the disk (on Windows, which opens no
    directories, only the former)."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
