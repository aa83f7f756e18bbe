"""Tasks that encode the text: lines become pairs of ids, which are deduplicated, distributed to shards, and counted.

Tasks pass data to tasks that divide it differently in grouped files: a range of the text stores its pairs by shard,
and a shard reads its group of every range. If duplicates are dropped, the encoded chunks wait in a file until it is
known which of their pairs occurred before. A task that finds duplicates has all equal keys of the whole text, so it
needs no other task. The first of equal keys in the order of the text counts, whichever process searches.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.preparation.chunk_encoder import EncodedChunk, drop_repeated
from towernmt.dataflow.preparation.corpus_statistics import Statistics
from towernmt.dataflow.preparation.input_texts import PairTexts
from towernmt.dataflow.preparation.tasks import NumberedTask, PreparationJob, atomic_output
from towernmt.dataflow.text.pair_filters import came_before
from towernmt.dataflow.text.text_lines import line_hash


@dataclass(frozen=True)
class EncodePart(NumberedTask):
    """Encodes a part of the text.

    Attributes:
        texts: lines of the part.
    """

    texts: PairTexts

    @classmethod
    def of(cls, job: PreparationJob, number: int, texts: PairTexts) -> EncodePart:
        """Return the task. If duplicates are kept, it also distributes the pairs to shards."""
        output = job.encoded(number) if job.lookups else job.distributed(number)
        return cls(output, texts.source.lines, job, number, texts)

    @property
    def title(self) -> str:
        return f"encoding {self.texts.source.title}"

    @property
    def done(self) -> bool:
        # The encoded pairs are removed when they have been distributed.
        return self.output.exists() or self.job.distributed(self.number).exists()

    def run(self) -> None:
        encoder = self.job.encoder()
        chunks = [encoder(*texts) for texts in self.texts.chunks()]
        if not self.job.lookups:
            write_distributed(self.job, self.number, chunks)
            return
        write_grouped(self.job.keys(self.number), group_by_lookup(_keys(chunks), self.job.lookups), {})
        write_encoded_chunks(self.output, chunks)


def _keys(chunks: list[EncodedChunk]) -> NDArray[np.uint64]:
    return np.concatenate([chunk.keys.ravel() for chunk in chunks if chunk.keys is not None])


def group_by_lookup(keys: NDArray[np.uint64], lookups: int) -> list[Column]:
    """Group keys by the task that looks them up; within a group, they keep the order of the text.

    Equal keys of all parts have the same task.

    Args:
        keys: uint64 `[keys]`, keys of a part, in the order of the text.
        lookups: number of tasks.

    Returns:
        the keys, and their indices in the part, int32 `[keys]`.
    """
    lookup = (keys >> np.uint64(32)) % np.uint64(lookups)
    order = np.argsort(lookup, kind="stable")
    counts = np.bincount(lookup.astype(np.int64), minlength=lookups)
    return [Column(keys[order], counts), Column(order.astype("<i4"), counts)]


@dataclass(frozen=True)
class FindDuplicates(NumberedTask):
    """Finds the duplicates in a share of the keys."""

    @property
    def title(self) -> str:
        return f"looking for duplicates, share {self.number + 1} of {self.job.lookups}"

    def run(self) -> None:
        parts = [GroupedFile(self.job.keys(part), self.number) for part in range(self.job.parts)]
        keys = np.frombuffer(b"".join(part.read(0) for part in parts), "<u8")
        repeated = came_before(keys)
        columns = list(_repeated_indices(repeated, parts))
        counts = np.array([len(indices) for indices in columns], np.int64)
        write_grouped(self.output, [Column(np.concatenate([np.zeros(0, "<i4"), *columns]), counts)], {})


def _repeated_indices(repeated: NDArray[np.bool_], parts: list[GroupedFile]) -> Iterator[NDArray[np.int32]]:
    start = 0
    for part in parts:
        indices = np.frombuffer(part.read(1), "<i4")
        yield indices[repeated[start:start + len(indices)]]
        start += len(indices)


def find_repeated_keys(job: PreparationJob, part: int, keys: int) -> NDArray[np.bool_]:
    """Return which keys of a part occurred before, bool `[keys]`, after all lookups are done."""
    repeated = np.zeros(keys, bool)
    for number in range(job.lookups):
        repeated[np.frombuffer(GroupedFile(job.repeated_keys(number), part).read(0), "<i4")] = True
    return repeated


@dataclass(frozen=True)
class DropDuplicates(NumberedTask):
    """Distributes the pairs of a part to shards, without those that occurred before."""

    @classmethod
    def of(cls, job: PreparationJob, number: int, lines: int) -> DropDuplicates:
        """Return the task for a part with `lines` lines."""
        return cls(job.distributed(number), lines, job, number)

    @property
    def title(self) -> str:
        return f"dropping the duplicates of part {self.number + 1} of {self.job.parts}"

    def run(self) -> None:
        encoded = self.job.encoded(self.number)
        try:
            chunks = read_encoded_chunks(encoded)
        except FileNotFoundError:
            if self.done:   # by another process
                return
            raise
        shapes = [chunk.keys.shape for chunk in chunks if chunk.keys is not None]
        repeated = find_repeated_keys(self.job, self.number, sum(rows * keys for rows, keys in shapes))
        stops = np.cumsum([rows * keys for rows, keys in shapes])[:-1]
        shares = [share.reshape(shape) for share, shape in zip(np.split(repeated, stops), shapes, strict=True)]
        write_distributed(self.job, self.number, [
            drop_repeated(chunk, share) for chunk, share in zip(chunks, shares, strict=True)])
        encoded.unlink(missing_ok=True)


def write_distributed(job: PreparationJob, number: int, chunks: Sequence[EncodedChunk]) -> None:
    """Write the pairs of a part, grouped by shard, and their statistics."""
    statistics = Statistics(job.factors, job.linked)
    for chunk in chunks:
        statistics.add(chunk)
    columns = list(group_by_shard(chunks, job.shards, job.seed))
    write_grouped(job.distributed(number), columns, {"statistics": statistics.state()})


def group_by_shard(chunks: Sequence[EncodedChunk], shards: int, seed: int) -> Iterator[Column]:
    """Yield the columns of shards (see `ShardInfo.columns`), grouped by shard; the pairs of a shard keep their order.

    The shard of a pair is drawn by (seed, line number). Training shuffles only within a shard, so each shard is a
    sample of the whole corpus (as in Sockeye).
    """
    lines = np.concatenate([chunk.line_numbers for chunk in chunks])
    shard = (line_hash(lines, seed) % np.uint64(shards)).astype(np.int64)
    order = np.argsort(shard, kind="stable")
    distribution = _Distribution(order, shard[order], shards)
    lengths = {name: np.concatenate([getattr(chunk, name) for chunk in chunks])
               for name in ("source_lengths", "target_lengths")}
    linked = chunks[0].link_counts is not None
    if linked:
        lengths["link_counts"] = np.concatenate([chunk.link_counts for chunk in chunks])
    for values in lengths.values():
        yield distribution.pairs(values.astype("<i4"))
    yield distribution.elements(lengths["source_lengths"], _joined(chunks, "source_ids"))
    yield distribution.elements(lengths["target_lengths"], _joined(chunks, "target_ids"))
    if chunks[0].source_factors is not None:
        for row in _joined(chunks, "source_factors"):
            yield distribution.elements(lengths["source_lengths"], row)
    if linked:
        for row in _joined(chunks, "links"):
            yield distribution.elements(lengths["link_counts"], row)


def _joined(chunks: Sequence[EncodedChunk], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(chunk, name) for chunk in chunks], axis=-1)


class _Distribution:
    """Sorts values of pairs by shard, without a loop over pairs.

    Args:
        order: int `[pairs]`, indices of the pairs, sorted by shard.
        shard_of_pair: int `[pairs]`, their shards.
        shards: number of shards.
    """

    def __init__(self, order: NDArray[np.intp], shard_of_pair: NDArray[np.int64], shards: int) -> None:
        self._order, self._shard_of_pair, self._shards = order, shard_of_pair, shards

    def pairs(self, values: NDArray[Any]) -> Column:
        """Sort values `[pairs]`, one for each pair."""
        return Column(values[self._order], np.bincount(self._shard_of_pair, minlength=self._shards))

    def elements(self, lengths: NDArray[np.int32], values: NDArray[Any]) -> Column:
        """Sort values `[elements]`, of which pair i has `lengths[i]`."""
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[self._order]
        lengths = lengths[self._order].astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        indices = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        counts = np.diff(offsets[np.searchsorted(self._shard_of_pair, np.arange(self._shards + 1))])
        return Column(values[indices], counts)


_ARRAYS = [field.name for field in fields(EncodedChunk) if field.name not in ("lines", "dropped")]


def write_encoded_chunks(path: Path, chunks: list[EncodedChunk]) -> None:
    """Write chunks to a file atomically."""
    arrays: dict[str, Any] = {"lines": np.array([chunk.lines for chunk in chunks])}
    for number, chunk in enumerate(chunks):
        arrays |= {f"{number}/{name}": values for name in _ARRAYS if (values := getattr(chunk, name)) is not None}
        arrays |= {f"{number}/dropped/{reason}": lines for reason, lines in chunk.dropped.items()}
    with atomic_output(path) as unfinished, open(unfinished, "wb") as file:
        np.savez(file, **arrays)


def read_encoded_chunks(path: Path) -> list[EncodedChunk]:
    """Read the file of `write_encoded_chunks`."""
    with np.load(path) as arrays:
        stored_arrays = {name: arrays[name] for name in arrays.files}
    chunks = []
    for number, lines in enumerate(stored_arrays["lines"].tolist()):
        begin = f"{number}/dropped/"
        dropped = {name.removeprefix(begin): values for name, values in stored_arrays.items() if name.startswith(begin)}
        columns = {name: stored_arrays.get(f"{number}/{name}") for name in _ARRAYS}
        chunks.append(EncodedChunk(lines=lines, dropped=dropped, **columns))    # type: ignore[arg-type]
    return chunks


_HEAD = struct.Struct("<qqq")     # number of columns, number of groups, bytes of all values


@dataclass(frozen=True)
class Column:
    """The values of all groups, one group after the other.

    Attributes:
        values: `[values]`, little-endian.
        counts: int64 `[groups]`, number of values of each group.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]


def write_grouped(path: Path, columns: Sequence[Column], facts: dict[str, Any]) -> None:
    """Write a grouped file atomically.

    Args:
        path: path of the file.
        columns: columns with the same number of groups.
        facts: additional JSON content.
    """
    sizes = np.array([column.counts * column.values.itemsize for column in columns], np.int64)
    with atomic_output(path) as unfinished, open(unfinished, "wb") as file:
        file.write(_HEAD.pack(*sizes.shape, int(sizes.sum())))
        file.write(sizes.astype("<i8").tobytes())
        for column in columns:
            file.write(np.ascontiguousarray(column.values).data)
        file.write(json.dumps(facts).encode())


class GroupedFile:
    """Reads one group of a file that `write_grouped` wrote. The file does not stay open."""

    def __init__(self, path: Path, group: int) -> None:
        self._path = path
        with open(path, "rb") as file:
            columns, groups, _ = _HEAD.unpack(file.read(_HEAD.size))
            sizes = np.frombuffer(file.read(8 * columns * groups), "<i8")
        stops = _HEAD.size + sizes.nbytes + np.cumsum(sizes)
        indices = np.arange(columns) * groups + group
        self._ranges = list(zip((stops - sizes)[indices].tolist(), sizes[indices].tolist(), strict=True))

    def size(self, column: int) -> int:
        """Return the number of bytes of the group in a column."""
        return self._ranges[column][1]

    def read(self, column: int) -> bytes:
        """Return the values of the group in a column."""
        offset, size = self._ranges[column]
        if not size:
            return b""
        with open(self._path, "rb") as file:
            file.seek(offset)
            return file.read(size)


def read_facts(path: Path) -> dict[str, Any]:
    """Return the additional content of a grouped file."""
    with open(path, "rb") as file:
        columns, groups, size = _HEAD.unpack(file.read(_HEAD.size))
        file.seek(8 * columns * groups + size, os.SEEK_CUR)
        facts: dict[str, Any] = json.loads(file.read())
    return facts
