"""Shards: a block of sentence pairs as one memory-mapped file of integer ids.

A block is flat arrays with offsets, without a Python object for each sentence.

Layout of the file, all little-endian: a header of 64 bytes, then source lengths int32 `[pairs]`, target lengths int32
`[pairs]`, source ids `[source tokens]`, target ids `[target tokens]`; ids are uint16 if every id fits, otherwise
int32. The header has the counts, so that a truncated file is recognised by its size, and the CRC-32 of everything
after the header; the manifest of the preparation has the same CRC-32, so that a shard of another preparation is
refused.

Shards with source factors or alignments are of version 2; all others stay of version 1. In version 2, link counts
int32 `[pairs]` follow the target lengths if there are alignments. The factors `[factors, source tokens]`, of the ids'
type, and the links uint16 `[2, links]` follow the target ids.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, remedy
from towernmt.core.files import naming, replacing
from towernmt.core.structured_files import Between


@dataclass(frozen=True)
class PairBlock:
    """The pairs of one block (a prepared shard, or a window of a stream), without BOS or EOS.

    Attributes:
        source_ids: int32 or a narrower unsigned type `[source tokens]`, all sentences one after the other.
        source_offsets: int64 `[pairs + 1]`; sentence i is
            `source_ids[source_offsets[i]:source_offsets[i + 1]]`.
        target_ids: type of `source_ids`, `[target tokens]`.
        target_offsets: int64 `[pairs + 1]`.
        source_factors: type of `source_ids`, `[factors, source tokens]`, the factors of the word of each subword; None
            without factors.
        links: uint16 `[2, links]`, the alignments of all pairs one after the other: index of the source subword and of
            the target subword in its sentence; None without alignments.
        link_offsets: int64 `[pairs + 1]`; None without alignments.
    """

    source_ids: NDArray[np.integer]
    source_offsets: NDArray[np.int64]
    target_ids: NDArray[np.integer]
    target_offsets: NDArray[np.int64]
    source_factors: NDArray[np.integer] | None = None
    links: NDArray[np.uint16] | None = None
    link_offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> NDArray[np.int64]:
        """int64 `[pairs]`, tokens without EOS."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        """int64 `[pairs]`, tokens without EOS."""
        return np.diff(self.target_offsets)


MAGIC = b"TNMTPAIR"
VERSION = 1
# magic, version, bytes of an id, pairs, source tokens, target tokens, CRC-32, source factors, whether there are
# alignments, links
_HEADER = struct.Struct("<8sIIQQQIHHQ8x")
_COPY_BYTES = 1 << 22
Count = Annotated[int, Between(0, 1 << 48)]


def id_dtype(largest_vocabulary: int) -> np.dtype[Any]:
    """Return the type of ids: uint16 if it can represent all ids of the largest vocabulary, otherwise int32."""
    return np.dtype("<u2") if largest_vocabulary <= 1 << 16 else np.dtype("<i4")


@dataclass(frozen=True)
class ShardInfo:
    """The entry of a shard in the manifest.

    Attributes:
        file: name in the directory of the preparation.
        pairs: number of pairs.
        source_tokens: number of source ids, without BOS and EOS.
        target_tokens: number of target ids, without BOS and EOS.
        id_bytes: bytes of an id, 2 or 4.
        crc32: CRC-32 of the file after the header.
        factors: number of source factors.
        links: number of links of all alignments; None without alignments.
    """

    file: str
    pairs: Count
    source_tokens: Count
    target_tokens: Count
    id_bytes: Literal[2, 4]
    crc32: Annotated[int, Between(0, (1 << 32) - 1)]
    factors: Annotated[int, Between(0, (1 << 16) - 1)] = 0
    links: Count | None = None

    def header(self) -> bytes:
        """Return the first bytes of the file."""
        return _HEADER.pack(MAGIC, VERSION, self.id_bytes, self.pairs, self.source_tokens, self.target_tokens,
                            self.crc32, self.factors, self.links is not None, self.links or 0)

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return _HEADER.size + sum(dtype.itemsize * count for dtype, count in self.columns())

    def columns(self) -> list[tuple[np.dtype[Any], int]]:
        """Return the type and the length of the arrays after the header, in their order."""
        lengths, ids, places = np.dtype("<i4"), np.dtype("<u2" if self.id_bytes == 2 else "<i4"), np.dtype("<u2")
        linked = self.links is not None
        return [*[(lengths, self.pairs)] * (3 if linked else 2), (ids, self.source_tokens), (ids, self.target_tokens),
                *[(ids, self.source_tokens)] * self.factors, *[(places, self.links or 0)] * (2 if linked else 0)]


class ShardWriter:
    """Writes one shard in steps; only a buffer is in memory.

    The arrays grow in separate files next to `path` (suffixes .p0, .p1, ...), which `finish` joins. Files are open only
    during `append` and `finish`, so that thousands of writers can exist.

    Args:
        path: path of the shard.
        dtype: type of the ids, see `id_dtype`.
        buffer_bytes: size of the buffer.
        factors: number of source factors.
        linked: whether the pairs have alignments.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], buffer_bytes: int = 1 << 22, factors: int = 0,
                 linked: bool = False) -> None:
        self._path, self._buffer_bytes = path, buffer_bytes
        self._info = ShardInfo(path.name, 0, 0, 0, 2 if dtype.itemsize == 2 else 4, 0, factors, 0 if linked else None)
        self._dtypes = [dtype for dtype, _ in self._info.columns()]
        self._parts = [path.with_name(f"{path.name}.p{n}") for n in range(len(self._dtypes))]
        self._buffers: list[list[bytes]] = [[] for _ in self._parts]
        self._buffered = 0
        self._pairs = self._source_tokens = self._target_tokens = self._links = 0
        for part in self._parts:
            part.write_bytes(b"")

    def append(self, source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer],
               source_ids: NDArray[np.integer], target_ids: NDArray[np.integer],
               source_factors: NDArray[np.integer] | None = None, link_counts: NDArray[np.integer] | None = None,
               links: NDArray[np.integer] | None = None) -> None:
        """Add pairs.

        Args:
            source_lengths: `[pairs]`, in tokens.
            target_lengths: `[pairs]`, in tokens.
            source_ids: `[source tokens]`.
            target_ids: `[target tokens]`.
            source_factors: `[factors, source tokens]`; None without factors.
            link_counts: `[pairs]`; None without alignments.
            links: `[2, links]`; None without alignments.
        """
        counts = [] if link_counts is None else [link_counts]
        columns = [source_lengths, target_lengths, *counts, source_ids, target_ids,
                   *([] if source_factors is None else source_factors), *([] if links is None else links)]
        for buffer, dtype, values in zip(self._buffers, self._dtypes, columns, strict=True):
            data = values.astype(dtype, copy=False).tobytes()
            buffer.append(data)
            self._buffered += len(data)
        self._pairs += len(source_lengths)
        self._source_tokens += len(source_ids)
        self._target_tokens += len(target_ids)
        self._links += 0 if links is None else links.shape[1]
        if self._buffered >= self._buffer_bytes:
            self._flush()

    def finish(self) -> ShardInfo:
        """Join the arrays into the shard, atomically; return its entry for the manifest."""
        self._flush()
        crc = 0
        with replacing(self._path) as file:
            file.write(bytes(_HEADER.size))
            for part in self._parts:
                crc = _copy(part, file, crc)
                part.unlink()
            info = replace(self._info, pairs=self._pairs, source_tokens=self._source_tokens,
                           target_tokens=self._target_tokens, crc32=crc,
                           links=None if self._info.links is None else self._links)
            file.seek(0)
            file.write(info.header())
        return info

    def _flush(self) -> None:
        for part, buffer in zip(self._parts, self._buffers, strict=True):
            if buffer:
                with naming(part), open(part, "ab") as file:
                    file.writelines(buffer)
                buffer.clear()
        self._buffered = 0


def read_shard(directory: Path, info: ShardInfo, verify: bool = True) -> PairBlock:
    """Map a shard into memory: only its offsets are loaded; its ids stay on the disk until they are used.

    Args:
        directory: directory of the preparation.
        info: entry of the shard in the manifest.
        verify: whether to read the complete file once and compare the CRC-32.

    Raises:
        DataError: missing, truncated, damaged, not a shard, or of another preparation.
    """
    path = directory / info.file
    try:
        with open(path, "rb") as file:
            return map_shard(file, str(path), info, verify)
    except OSError as error:
        raise DataError(f"{path}: cannot read the shard ({error.strerror}). "
                        f"{remedy(error, 'Prepare the data again.')}") from error


def map_shard(file: BinaryIO, name: str, info: ShardInfo, verify: bool) -> PairBlock:
    """Map an open shard into memory. Afterwards the file may be closed, and even unlinked.

    Args:
        file: a file on a disk, open for reading at its start.
        name: name of the file, for messages.
        info: entry of the shard in the manifest.
        verify: whether to compare the CRC-32.

    Raises:
        DataError: truncated, damaged, not a shard, or of another preparation.
        OSError: the disk cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header[:len(MAGIC)] != MAGIC:
        raise DataError(f"{name}: not a shard of a preparation. Prepare the data again.")
    version = _HEADER.unpack(header)[1]
    if version != VERSION:
        raise DataError(f"{name}: shard of format {version}, but this towernmt reads format {VERSION}. Prepare the "
                        "data again.")
    if header != info.header():
        raise DataError(f"{name}: the shard belongs to another preparation than the manifest next to it. "
                        "Prepare the data again.")
    if size != info.bytes:
        raise DataError(f"{name}: {size} bytes where the header announces {info.bytes}: the shard is "
                        f"{'truncated' if size < info.bytes else 'damaged'}. Prepare the data again.")
    body = np.memmap(file, np.uint8, mode="r", offset=0)
    if verify and zlib.crc32(body[_HEADER.size:].data) != info.crc32:
        raise DataError(f"{name}: the shard is damaged (its checksum is wrong). Prepare the data again.")
    return _block(body, info)


def _block(body: NDArray[np.uint8], info: ShardInfo) -> PairBlock:
    columns = info.columns()
    bounds = np.cumsum([_HEADER.size, *(dtype.itemsize * count for dtype, count in columns)]).tolist()
    arrays: list[Any] = [body[start:stop].view(dtype)
                         for start, stop, (dtype, _) in zip(bounds[:-1], bounds[1:], columns, strict=True)]
    counts = None if info.links is None else arrays.pop(2)
    source_lengths, target_lengths, source_ids, target_ids = arrays[:4]
    block = PairBlock(source_ids, _offsets(source_lengths), target_ids, _offsets(target_lengths))
    if info.factors:
        # The rows of the factors are contiguous, and so are those of the links: each is an array of two dimensions.
        start = bounds[len(columns) - info.factors - (0 if counts is None else 2)]
        stop = start + info.factors * info.source_tokens * info.id_bytes
        block = replace(block, source_factors=body[start:stop].view(source_ids.dtype).reshape(info.factors, -1))
    if counts is not None:
        links = body[bounds[-3]:bounds[-1]].view("<u2").reshape(2, -1)
        block = replace(block, links=links, link_offsets=_offsets(counts))
    return block


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
