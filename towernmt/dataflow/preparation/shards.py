"""Shards: a block of sentence pairs as one memory-mapped file of integer ids.

A block is flat arrays with offsets, without a Python object for each sentence.

Layout of the file, all little-endian: a header of 64 bytes, then source lengths int32 `[pairs]`, target lengths int32
`[pairs]`, source ids `[source tokens]`, target ids `[target tokens]`; ids are uint16 if every id fits, otherwise
int32. The header has the counts, so that a truncated file is recognised by its size, and the CRC-32 of everything
after the header; the manifest of the preparation has the same CRC-32, so that a shard of another preparation is
refused.

If there are alignments, link counts int32 `[pairs]` follow the target lengths. The factors `[factors, source tokens]`,
of the ids' type, and the links uint16 `[2, links]` follow the target ids.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, remedy
from towernmt.core.structured_files import Between
from towernmt.dataflow.vocabulary.sentencepiece_model import spans

PREPARE_AGAIN = "Prepare the data again with --overwrite."
"""The fix for damaged prepared data. Without --overwrite, `prepare` keeps data that have a valid manifest."""


@dataclass(frozen=True)
class PairBlock:
    """The pairs of one block (a prepared shard, or a window of a stream), without BOS or EOS.

    Attributes:
        source_ids: int32 or a narrower unsigned type `[source tokens]`, the concatenated sentences.
        source_offsets: int64 `[pairs + 1]`; sentence i is
            `source_ids[source_offsets[i]:source_offsets[i + 1]]`.
        target_ids: type of `source_ids`, `[target tokens]`.
        target_offsets: int64 `[pairs + 1]`.
        source_factors: type of `source_ids`, `[factors, source tokens]`, the factors of the word of each subword; None
            without factors. Each row is contiguous, as NumPy's `take` keeps it, unlike an index of the tokens.
        links: uint16 `[2, links]`, the concatenated alignments of all pairs: index of the source subword and of
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

    @property
    def lengths_with_eos(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of source and of target tokens including EOS, each int64 `[pairs]`."""
        return np.diff(self.source_offsets) + 1, np.diff(self.target_offsets) + 1

    def ids_of_pair(self, index: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return the source ids and the target ids of a pair."""
        return (self.source_ids[self.source_offsets[index]:self.source_offsets[index + 1]],
                self.target_ids[self.target_offsets[index]:self.target_offsets[index + 1]])


MAGIC = b"TNMTPAIR"
VERSION = 1
# magic, version, bytes of an id, pairs, source tokens, target tokens, CRC-32, source factors, whether there are
# alignments, links
_HEADER = struct.Struct("<8sIIQQQIHHQ8x")
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
        lengths, ids, indices = np.dtype("<i4"), np.dtype("<u2" if self.id_bytes == 2 else "<i4"), np.dtype("<u2")
        linked = self.links is not None
        return [*[(lengths, self.pairs)] * (3 if linked else 2), (ids, self.source_tokens), (ids, self.target_tokens),
                *[(ids, self.source_tokens)] * self.factors, *[(indices, self.links or 0)] * (2 if linked else 0)]


def write_shard(file: BinaryIO, info: ShardInfo, arrays: Iterable[bytes]) -> ShardInfo:
    """Write a shard to an empty file, and return its entry with the checksum.

    Args:
        file: the file, open for writing.
        info: the entry, with the sizes of the arrays.
        arrays: content of the arrays in the order of `ShardInfo.columns`; each array may be divided.
    """
    crc = 0
    file.write(info.header())
    for data in arrays:
        crc = zlib.crc32(data, crc)
        file.write(data)
    info = replace(info, crc32=crc)
    file.seek(0)
    file.write(info.header())
    return info


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
                        f"{remedy(error, PREPARE_AGAIN)}") from error


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
        raise DataError(f"{name}: not a shard of a preparation. {PREPARE_AGAIN}")
    version = _HEADER.unpack(header)[1]
    if version != VERSION:
        raise DataError(f"{name}: shard of format {version}, but this towernmt reads format {VERSION}. "
                        f"{PREPARE_AGAIN}")
    if header != info.header():
        raise DataError(f"{name}: the shard belongs to another preparation than the manifest next to it. "
                        f"{PREPARE_AGAIN}")
    if size != info.bytes:
        raise DataError(f"{name}: {size} bytes where the header announces {info.bytes}: the shard is "
                        f"{'truncated' if size < info.bytes else 'damaged'}. {PREPARE_AGAIN}")
    body = np.memmap(file, np.uint8, mode="r", offset=0)
    if verify and zlib.crc32(body[_HEADER.size:].data) != info.crc32:
        raise DataError(f"{name}: the shard is damaged (its checksum is wrong). {PREPARE_AGAIN}")
    return _block(body, info)


def _block(body: NDArray[np.uint8], info: ShardInfo) -> PairBlock:
    columns = info.columns()
    bounds = np.cumsum([_HEADER.size, *(dtype.itemsize * count for dtype, count in columns)]).tolist()
    arrays: list[Any] = [body[start:stop].view(dtype)
                         for start, stop, (dtype, _) in zip(bounds[:-1], bounds[1:], columns, strict=True)]
    counts = None if info.links is None else arrays.pop(2)
    source_lengths, target_lengths, source_ids, target_ids = arrays[:4]
    block = PairBlock(source_ids, offsets_of_lengths(source_lengths), target_ids, offsets_of_lengths(target_lengths))
    if info.factors:
        # The rows of the factors are contiguous, and so are those of the links: each is an array of two dimensions.
        start = bounds[len(columns) - info.factors - (0 if counts is None else 2)]
        stop = start + info.factors * info.source_tokens * info.id_bytes
        block = replace(block, source_factors=body[start:stop].view(source_ids.dtype).reshape(info.factors, -1))
    if counts is not None:
        links = body[bounds[-3]:bounds[-1]].view("<u2").reshape(2, -1)
        block = replace(block, links=links, link_offsets=offsets_of_lengths(counts))
    return block


def offsets_of_lengths(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return int64 `[lengths + 1]`: the beginning of each sentence, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def pair_range(block: PairBlock, first: int, last: int) -> PairBlock:
    """Return the pairs from `first` to before `last`, without factors and links."""
    source, target = block.source_offsets[first:last + 1], block.target_offsets[first:last + 1]
    return PairBlock(block.source_ids[source[0]:source[-1]], source - source[0],
                     block.target_ids[target[0]:target[-1]], target - target[0])


def every_pair(block: PairBlock, first: int, step: int) -> PairBlock:
    """Return every `step`-th pair from `first` on, in memory."""
    return select_pairs(block, np.arange(first, len(block), step))


def select_pairs(block: PairBlock, pairs: NDArray[np.int64]) -> PairBlock:
    """Return the pairs with the given indices, in this order, in memory."""
    source, source_offsets = _select_rows(block.source_offsets, pairs)
    target, target_offsets = _select_rows(block.target_offsets, pairs)
    selected = PairBlock(block.source_ids[source], source_offsets, block.target_ids[target], target_offsets)
    if block.source_factors is not None:
        selected = replace(selected, source_factors=np.take(block.source_factors, source, axis=1))
    if block.links is not None and block.link_offsets is not None:
        links, link_offsets = _select_rows(block.link_offsets, pairs)
        selected = replace(selected, links=block.links[:, links], link_offsets=link_offsets)
    return selected


def join_blocks(first: PairBlock, second: PairBlock) -> PairBlock:
    """Return the pairs of both blocks in memory, with factors and links if both blocks have them."""
    joined = PairBlock(
        np.concatenate([first.source_ids, second.source_ids]),
        np.concatenate([first.source_offsets, first.source_offsets[-1] + second.source_offsets[1:]]),
        np.concatenate([first.target_ids, second.target_ids]),
        np.concatenate([first.target_offsets, first.target_offsets[-1] + second.target_offsets[1:]]))
    if first.source_factors is not None and second.source_factors is not None:
        joined = replace(joined, source_factors=np.concatenate([first.source_factors, second.source_factors], 1))
    if first.links is not None and second.links is not None:
        first_offsets, second_offsets = np.asarray(first.link_offsets), np.asarray(second.link_offsets)
        joined = replace(joined, links=np.concatenate([first.links, second.links], 1),
                         link_offsets=np.concatenate([first_offsets, first_offsets[-1] + second_offsets[1:]]))
    return joined


def reversed_block(block: PairBlock) -> PairBlock:
    """Return the pairs with source and target exchanged, without factors and links."""
    return PairBlock(block.target_ids, block.target_offsets, block.source_ids, block.source_offsets)


def with_source_prefix(block: PairBlock, token: int) -> PairBlock:
    """Return the pairs with a token before each source, without factors and links."""
    return PairBlock(np.insert(block.source_ids, block.source_offsets[:-1], token),
                     block.source_offsets + np.arange(len(block.source_offsets)),
                     block.target_ids, block.target_offsets)


def _select_rows(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the elements of some rows, and the offsets of these rows when they are concatenated."""
    begins = offsets[rows]
    counts = offsets[rows + 1] - begins
    return spans(begins, counts), offsets_of_lengths(counts)
