"""Shards: a block of sentence pairs as one file of integer ids that memory-maps.

Layout, all little-endian: a header of 64 bytes, then source lengths int32 `[pairs]`, target lengths
int32 `[pairs]`, source ids `[source tokens]`, target ids `[target tokens]`; ids are uint16 where every
id fits, otherwise int32. The header holds the counts, so that a truncated file is known by its size,
and the CRC-32 of all that follows; the manifest of the preparation holds the same CRC-32, so that
a shard of another preparation is refused.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from towernmt.atomic_files import replacing
from towernmt.dataflow.pairs import PairBlock
from towernmt.errors import DataError

MAGIC = b"TNMTPAIR"
VERSION = 1
# magic, version, bytes an id, pairs, source tokens, target tokens, CRC-32
_HEADER = struct.Struct("<8sIIQQQI20x")
_COPY_BYTES = 1 << 22


def id_dtype(largest_vocabulary: int) -> np.dtype[Any]:
    """The narrowest type of the two that holds every id of a vocabulary."""
    return np.dtype("<u2") if largest_vocabulary <= 1 << 16 else np.dtype("<i4")


@dataclass(frozen=True)
class ShardInfo:
    """What the manifest says of a shard.

    Attributes:
        file: name in the directory of the preparation.
        pairs: number of pairs.
        source_tokens, target_tokens: number of ids, without BOS and EOS.
        id_bytes: bytes an id, 2 or 4.
        crc32: of everything after the header.
    """

    file: str
    pairs: int
    source_tokens: int
    target_tokens: int
    id_bytes: int
    crc32: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return _HEADER.size + 8 * self.pairs + self.id_bytes * (self.source_tokens + self.target_tokens)


class ShardWriter:
    """Writes one shard as its pairs come; little of it is in memory.

    The four arrays grow in files of their own beside `path` (suffixes .p0 to .p3), which `finish` joins.
    Only `append` and `finish` open files, and close them, so that thousands of writers can exist.

    Args:
        path: the shard.
        dtype: of the ids, see `id_dtype`.
        buffer_bytes: how much is kept in memory before it is written.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], buffer_bytes: int = 1 << 22) -> None:
        self._path, self._dtype, self._buffer_bytes = path, dtype, buffer_bytes
        self._parts = [path.with_name(f"{path.name}.p{n}") for n in range(4)]
        self._buffers: list[list[bytes]] = [[] for _ in self._parts]
        self._buffered = 0
        self._bytes = [0, 0, 0, 0]
        for part in self._parts:
            part.write_bytes(b"")

    def append(self, source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer],
               source_ids: NDArray[np.integer], target_ids: NDArray[np.integer]) -> None:
        """Add pairs: lengths `[pairs]`, ids `[tokens]`."""
        dtypes = (np.dtype("<i4"), np.dtype("<i4"), self._dtype, self._dtype)
        for n, values in enumerate((source_lengths, target_lengths, source_ids, target_ids)):
            data = values.astype(dtypes[n], copy=False).tobytes()
            self._buffers[n].append(data)
            self._bytes[n] += len(data)
            self._buffered += len(data)
        if self._buffered >= self._buffer_bytes:
            self._flush()

    def finish(self) -> ShardInfo:
        """Join the parts into the shard, under a temporary name first."""
        self._flush()
        pairs = self._bytes[0] // 4
        source_tokens, target_tokens = (count // self._dtype.itemsize for count in self._bytes[2:])
        crc = 0
        with replacing(self._path) as file:
            file.write(bytes(_HEADER.size))
            for part in self._parts:
                crc = _copy(part, file, crc)
                part.unlink()
            file.seek(0)
            file.write(_HEADER.pack(MAGIC, VERSION, self._dtype.itemsize, pairs, source_tokens, target_tokens,
                                    crc))
        return ShardInfo(self._path.name, pairs, source_tokens, target_tokens, self._dtype.itemsize, crc)

    def _flush(self) -> None:
        for part, buffer in zip(self._parts, self._buffers, strict=True):
            if buffer:
                with open(part, "ab") as file:
                    file.writelines(buffer)
                buffer.clear()
        self._buffered = 0


def read_shard(directory: Path, info: ShardInfo, verify: bool = True) -> PairBlock:
    """Map a shard: its ids stay on disk until they are touched; only the offsets are in memory.

    Args:
        directory: the directory of the preparation.
        info: what the manifest says of this shard.
        verify: read the whole file once and compare the CRC-32.
    Raises:
        DataError: missing, truncated, damaged, not a shard, or of another preparation.
    """
    path = directory / info.file
    try:
        with open(path, "rb") as file:
            return map_shard(file, str(path), info, verify)
    except OSError as error:
        raise DataError(f"{path}: cannot read the shard ({error.strerror}). Prepare the data "
                        "again.") from error


def map_shard(file: BinaryIO, name: str, info: ShardInfo, verify: bool) -> PairBlock:
    """Map an open shard. The block outlives the file: it may be closed, and even unlinked, afterwards.

    Args:
        file: a file of a disk, open for reading at its start.
        name: for messages.
        info, verify: see `read_shard`.
    Raises:
        DataError: truncated, damaged, not a shard, or of another preparation.
        OSError: the disk cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header[:len(MAGIC)] != MAGIC:
        raise DataError(f"{name}: not a shard of a preparation. Prepare the data again.")
    _, version, id_bytes, pairs, source_tokens, target_tokens, crc = _HEADER.unpack(header)
    if version != VERSION:
        raise DataError(f"{name}: shard of format {version}, but this towernmt reads format {VERSION}. "
                        "Prepare the data again.")
    if (id_bytes, pairs, source_tokens, target_tokens, crc) != (
            info.id_bytes, info.pairs, info.source_tokens, info.target_tokens, info.crc32):
        raise DataError(f"{name}: the shard belongs to another preparation than the manifest beside it. "
                        "Prepare the data again.")
    if size != info.bytes:
        raise DataError(f"{name}: {size} bytes where the header announces {info.bytes}: the shard is "
                        f"{'truncated' if size < info.bytes else 'damaged'}. Prepare the data again.")
    body = np.memmap(file, np.uint8, mode="r", offset=0)
    if verify and zlib.crc32(body[_HEADER.size:].data) != crc:
        raise DataError(f"{name}: the shard is damaged (its checksum is wrong). Prepare the data again.")
    ids = np.dtype("<u2") if id_bytes == 2 else np.dtype("<i4")
    sizes = [4 * pairs, 4 * pairs, id_bytes * source_tokens, id_bytes * target_tokens]
    bounds = np.cumsum([_HEADER.size, *sizes])
    source_lengths, target_lengths, source_ids, target_ids = (
        body[start:stop].view(dtype)
        for start, stop, dtype in zip(bounds[:-1], bounds[1:], ("<i4", "<i4", ids, ids), strict=True))
    return PairBlock(source_ids, _offsets(source_lengths), target_ids, _offsets(target_lengths))


def _offsets(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _copy(part: Path, file: BinaryIO, crc: int) -> int:
    with open(part, "rb") as source:
        while block := source.read(_COPY_BYTES):
            crc = zlib.crc32(block, crc)
            file.write(block)
    return crc
