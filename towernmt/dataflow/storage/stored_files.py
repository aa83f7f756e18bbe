"""Stored files: the interface of a storage, local disks, and decompression.

A truncated or damaged file must not be taken for a shorter corpus. So the length of the file, the end marker of every
compressed stream, and the checksums of the formats are checked.
"""

from __future__ import annotations

import bz2
import glob
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

from towernmt.core.errors import DataError, remedy
from towernmt.dataflow.text.text_lines import check_rereadable


class StoredFile(NamedTuple):
    """The state of a file when it was listed.

    Attributes:
        name: path or URL, for opening and for messages.
        size: size in bytes.
        version: text that changes with the content: an ETag, or time of the last change and size.
    """

    name: str
    size: int
    version: str


class Storage(Protocol):
    """Access to files, for example on a disk or in an object store."""

    def list(self, pattern: str) -> list[StoredFile]:
        """Return the files that a pattern matches (`*`, `?`, `[...]`; `**` for any folders), sorted by name.

        If a file has the name `pattern` itself, wildcards in it have no meaning.

        Raises:
            DataError: no file matches, or the storage cannot be reached.
        """

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """Return a reader from `offset` on. `read(n)` may return fewer than n bytes, but none only at the end.

        Raises:
            DataError: the file is missing, cannot be read, or has changed since it was listed.
        """


class PositionedReader(io.RawIOBase):
    """A reader of a stored file that can move to any position. A subclass implements `readinto`.

    Args:
        file: the file.
        position: index of the first byte.
    """

    def __init__(self, file: StoredFile, position: int = 0) -> None:
        super().__init__()
        self._file, self._position = file, position

    def readable(self) -> bool:
        """Return whether the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether `seek` works."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset in bytes, and return the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = max(0, base + offset)
        return self._position


class LocalStorage:
    """A `Storage` of the files on disks of this machine."""

    def list(self, pattern: str) -> list[StoredFile]:
        """See `Storage.list`. Hidden files match only patterns that begin with a dot, as in a shell."""
        if os.path.lexists(pattern) or not glob.has_magic(pattern):
            file = self._stat(pattern)
            if file is None:
                raise DataError(f"{pattern}: this is a folder, not a file. Name the files in it, for example "
                                f"{os.path.join(pattern, '*.tsv.gz')} or {os.path.join(pattern, '**', '*.mo')}.")
            return [file]
        # With two `**` in the pattern, glob returns a file once for each way to match it.
        names = set(glob.glob(pattern, recursive=True))
        matches = [self._stat(name) for name in sorted(_without_links(names) if "**" in pattern else names)]
        files = [file for file in matches if file is not None]
        if not files:
            raise DataError(f"{pattern}: no file matches this pattern. Check the path, and that the shell has not "
                            "changed it (put it in quotes).")
        return files

    def open(self, file: StoredFile, offset: int = 0) -> BinaryIO:
        """Return a reader of a file; see `Storage.open`."""
        try:
            opened = open(file.name, "rb", buffering=0)
        except OSError as error:
            raise _unreadable(file.name, error) from error
        try:
            version = _version(os.fstat(opened.fileno()))
            if version != file.version:
                raise DataError(f"{file.name}: the file has changed since reading began, so saved positions are not "
                                "valid. Restore the old file, or start again.")
            opened.seek(offset)
        except BaseException:
            opened.close()
            raise
        return opened

    def _stat(self, path: str) -> StoredFile | None:
        """Return the file of a path, or None if it is a folder."""
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        if stat.S_ISDIR(status.st_mode):
            return None
        check_rereadable(path)
        return StoredFile(path, status.st_size, _version(status))


def _without_links(names: Iterable[str]) -> Iterable[str]:
    """Return the names of files without those that reach a folder again, through a link to it."""
    folders: dict[str, str] = {}
    distinct: dict[tuple[str, str], str] = {}
    for name in sorted(names, key=lambda name: (name.count(os.sep), name)):
        folder, file = os.path.split(name)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        distinct.setdefault((folders[folder], file), name)
    return distinct.values()


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"


def _unreadable(path: str, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: the file does not exist. Check the path.")
    return DataError(f"{path}: cannot be read ({error.strerror}). {remedy(error, 'Check the file.')}")


READ_BYTES = 1 << 17       # half and twice this size are slower
_COMPRESSED_BYTES = 1 << 14       # small, so that one call decompresses at most a few MiB of very compressible text


class UnreadableError(Exception):
    """The content of a file is damaged. A caller that knows the line converts it to a DataError with `at`.

    Args:
        reason: description of the damage.
        advice: a sentence on how to fix it.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice

    def at(self, location: str) -> DataError:
        """Return the error for the user; `location` is the file, or the file and the line."""
        return DataError(f"{location}: {self}. {self.advice}")


class _StreamDecoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Compression(NamedTuple):
    """A compression format: its name, and the constructor of a decoder for one stream."""

    name: str
    decoder: Callable[[], _StreamDecoder]


_LARGEST_WINDOW = 1 << 31      # of zstd --long=31; the default of the library is that of --long=27


def _gzip() -> _StreamDecoder:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def _zstandard() -> _StreamDecoder:
    try:
        import zstandard
    except ImportError as error:
        raise DataError("Reading .zst files needs the package zstandard: pip install 'towernmt[zstd]'.") from error
    return zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()


_COMPRESSIONS = {".gz": Compression("gzip", _gzip), ".bz2": Compression("bzip2", bz2.BZ2Decompressor),
                 ".xz": Compression("xz", lzma.LZMADecompressor), ".zst": Compression("zstd", _zstandard)}


def split_compression(name: str) -> tuple[str, Compression | None]:
    """Return a file's name without the suffix of its compression, and the compression, or None."""
    for suffix, compression in _COMPRESSIONS.items():
        if name.lower().endswith(suffix):
            return name[:-len(suffix)], compression
    return name, None


def read_bytes(storage: Storage, file: StoredFile, offset: int = 0) -> Iterator[bytes]:
    """Yield the (decompressed) bytes of a file from `offset` on, in chunks.

    An uncompressed file is read from the offset; a compressed file is decompressed from its beginning.

    Raises:
        DataError: the file is missing or has changed.
        UnreadableError: the file cannot be read to its end.
    """
    compression = split_compression(file.name)[1]
    if compression is None:
        yield from _stored(storage, file, offset, READ_BYTES)
        return
    for data in _decompressed(_stored(storage, file, 0, _COMPRESSED_BYTES), compression):
        for start in range(offset, len(data), READ_BYTES):
            yield data[start:start + READ_BYTES]
        offset = max(0, offset - len(data))


def _stored(storage: Storage, file: StoredFile, position: int, size: int) -> Iterator[bytes]:
    """Yield the stored bytes, and check that their number is the size when the file was listed."""
    with storage.open(file, position) as opened:
        try:
            while data := opened.read(size):
                position += len(data)
                yield data
        except OSError as error:
            raise UnreadableError(f"cannot be read at byte {position} ({error.strerror or error})",
                                  "Check the disk.") from error
    if position != file.size:
        raise UnreadableError(f"the file had {file.size} bytes when reading began, but ends at byte {position}",
                              "Do not change a file while it is read.")


def _decompressed(stored: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    """Yield the content of all compressed streams of a file. Zero bytes between and after them are padding."""
    decoder: _StreamDecoder | None = compression.decoder()
    for data in stored:
        while data:
            if decoder is None:
                data = data.lstrip(b"\0")
                if not data:
                    break
                decoder = compression.decoder()
            if text := _decompress(decoder, data, compression):
                yield text
            if decoder.eof:
                data, decoder = decoder.unused_data, None
            else:
                data = b""
    if decoder is not None:
        raise _damaged(compression, "the file ends in the middle of the data")


def _decompress(decoder: _StreamDecoder, data: bytes, compression: Compression) -> bytes:
    try:
        return decoder.decompress(data)
    except MemoryError:
        raise
    except Exception as error:      # zlib.error, OSError, ValueError, LZMAError or ZstdError, depending on the library
        raise _damaged(compression, " ".join(str(error).split())) from error


def _damaged(compression: Compression, reason: str) -> UnreadableError:
    return UnreadableError(f"the {compression.name} data are damaged ({reason})", "Restore the file from a good copy.")
