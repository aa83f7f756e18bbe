"""The interface between file formats and places that hold files; and local disks."""

from __future__ import annotations

import glob
import os
import stat
from typing import BinaryIO, NamedTuple, Protocol

from towernmt.core.errors import DataError
from towernmt.dataflow.text.chunks import check_rereadable


class StoredFile(NamedTuple):
    """One file as it was when it was listed.

    Attributes:
        name: path, or s3://bucket/key; for opening and for messages.
        size: bytes.
        version: changes when the content does: an ETag, or time of change and size.
    """

    name: str
    size: int
    version: str


class Storage(Protocol):
    """A place that holds files: a disk, an object store."""

    def list(self, pattern: str) -> list[StoredFile]:
        """The files that a pattern matches (`*`, `?`, `[...]`; `**` any folders between), sorted by name.

        A name that exists as it is written is taken as it is, whatever characters it has.

        Raises:
            DataError: nothing matches, or the place cannot be reached.
        """

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """The file's bytes from `offset` on; `read(n)` may give fewer than n bytes, but none only at the end.

        Raises:
            DataError: it is gone, cannot be read, or has changed since it was listed.
        """


class LocalStorage:
    """Files on disks of this machine (a `Storage`)."""

    def list(self, pattern: str) -> list[StoredFile]:
        """See `Storage.list`. Hidden files match only patterns that begin with a dot, as in a shell."""
        if os.path.lexists(pattern) or not glob.has_magic(pattern):
            file = self._stat(pattern)
            if file is None:
                raise DataError(f"{pattern}: it is a folder, not a file. Name the files in it, for example "
                                f"{os.path.join(pattern, '*.tsv.gz')} or {os.path.join(pattern, '**', '*.mo')}.")
            return [file]
        found = [self._stat(name) for name in sorted(glob.glob(pattern, recursive=True))]
        files = [file for file in found if file is not None]
        if not files:
            raise DataError(f"{pattern}: no file matches this pattern. Check the path, and that the shell has not "
                            "changed it (put it in quotes).")
        return files

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """See `Storage.open`."""
        try:
            opened = open(file.name, "rb", buffering=0)
        except OSError as error:
            raise _unreadable(file.name, error) from error
        try:
            now = _version(os.fstat(opened.fileno()))
            if now != file.version:
                raise DataError(f"{file.name}: the file has changed since reading began, so that places in it have "
                                "lost their meaning. Put the old file back, or begin anew.")
            opened.seek(offset)
        except BaseException:
            opened.close()
            raise
        return opened

    def _stat(self, path: str) -> StoredFile | None:
        """The file, or None where it is a folder."""
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        if stat.S_ISDIR(status.st_mode):
            return None
        check_rereadable(path)
        return StoredFile(path, status.st_size, _version(status))


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"


def _unreadable(path: str, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: there is no such file. Check the path.")
    return DataError(f"{path}: cannot be read ({error.strerror}). Check the file.")
