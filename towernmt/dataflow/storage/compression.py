"""The bytes of stored files, decompressed if the name says so; a file that is cut off is an error.

A file that is cut off or damaged must not look like a shorter corpus. So the length of the file, the end mark of every
compressed stream, and the checksums of the formats are checked.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from towernmt.core.errors import DataError
from towernmt.dataflow.storage.stored_files import Storage, StoredFile

READ_BYTES = 1 << 17       # measured: half of it and twice as much are slower
_COMPRESSED_BYTES = 1 << 14       # so that one call decompresses some MiB at most, however well the text packs


class UnreadableError(Exception):
    """What is wrong with the bytes of a file, and how to mend it; who knows the line makes a DataError of it."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice

    def at(self, place: str) -> DataError:
        """The error for the user."""
        return DataError(f"{place}: {self}. {self.advice}")


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Compression(NamedTuple):
    """A way to compress: its name, and what begins to decompress one stream of it."""

    name: str
    decoder: Callable[[], _Decoder]


def _gzip() -> _Decoder:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def _zstandard() -> _Decoder:
    try:
        import zstandard
    except ImportError as error:
        raise DataError("Reading .zst files needs the package zstandard: pip install 'towernmt[zstd]'.") from error
    return zstandard.ZstdDecompressor().decompressobj()


_COMPRESSIONS = {".gz": Compression("gzip", _gzip), ".bz2": Compression("bzip2", bz2.BZ2Decompressor),
                 ".xz": Compression("xz", lzma.LZMADecompressor), ".zst": Compression("zstd", _zstandard)}


def split_compression(name: str) -> tuple[str, Compression | None]:
    """A file's name without the ending that tells its compression, and that compression (None: plain)."""
    for suffix, compression in _COMPRESSIONS.items():
        if name.lower().endswith(suffix):
            return name[:-len(suffix)], compression
    return name, None


def read_bytes(storage: Storage, file: StoredFile, offset: int = 0) -> Iterator[bytes]:
    """The (decompressed) bytes of a file from `offset` on, in pieces.

    For a plain file that is a seek; a compressed one is decompressed from its beginning.

    Raises:
        DataError: the file is gone or has changed.
        UnreadableError: it cannot be read to its end.
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
    """The bytes as they are stored, exactly as many as were there when the file was listed."""
    with storage.open(file, position) as opened:
        try:
            while data := opened.read(size):
                position += len(data)
                yield data
        except OSError as error:
            raise UnreadableError(f"cannot be read at byte {position} ({error.strerror or error})",
                                  "Check the disk.") from error
    if position != file.size:
        raise UnreadableError(f"it had {file.size} bytes when reading began, but reading came to byte {position}",
                              "Do not change a file while it is read.")


def _decompressed(pieces: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    """Every stream of a file, one after another; zero bytes between and after them are padding."""
    decoder: _Decoder | None = compression.decoder()
    for data in pieces:
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


def _decompress(decoder: _Decoder, data: bytes, compression: Compression) -> bytes:
    try:
        return decoder.decompress(data)
    except MemoryError:
        raise
    except Exception as error:      # zlib.error, OSError, ValueError, LZMAError, ZstdError: each library has its own
        raise _damaged(compression, " ".join(str(error).split())) from error


def _damaged(compression: Compression, reason: str) -> UnreadableError:
    return UnreadableError(f"the {compression.name} data are damaged ({reason})", "Restore the file from a good copy.")
