"""A directory among the temporary files that outlives a process which is interrupted: the next one goes on in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.core.files.directory_lock import DirectoryLock


@contextmanager
def kept_directory(purpose: str, activity: str) -> Iterator[Path]:
    """A directory of its own for each purpose, in `TMPDIR`.

    It is removed when the block ends, unless by an exception while there is something in it.

    Args:
        purpose: the same text finds the same directory again.
        activity: what is done there, for the lock.
    Raises:
        DirectoryInUseError: another process is at work in it.
        DataError: it belongs to another user.
    """
    path = Path(tempfile.gettempdir()) / f"towernmt-kept-{hashlib.sha256(purpose.encode()).hexdigest()[:16]}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or (hasattr(os, "getuid") and path.lstat().st_uid != os.getuid()):
        raise DataError(f"{path} belongs to somebody else. Remove it, or set TMPDIR to a directory of your own.")
    with DirectoryLock(path, activity):
        inside = path / "content"
        inside.mkdir(exist_ok=True)
        try:
            yield inside
        except BaseException:
            if not any(inside.iterdir()):
                shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)
