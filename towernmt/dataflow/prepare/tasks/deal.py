"""Dealing the pairs of a part to shards, and counting them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.prepare.chunk_encoder import EncodedChunk, without_seen
from towernmt.dataflow.prepare.running.task import Task
from towernmt.dataflow.prepare.statistics_counter import Statistics
from towernmt.dataflow.prepare.tasks.encoded_chunks import read_chunks
from towernmt.dataflow.prepare.tasks.find_duplicates import seen_in_part
from towernmt.dataflow.prepare.tasks.grouped_file import Column, write_grouped
from towernmt.dataflow.prepare.tasks.job import Job
from towernmt.dataflow.text.line_hash import line_hash


@dataclass(frozen=True)
class DropDuplicates(Task):
    """Deals the pairs of a part that did not come before.

    Attributes:
        job: of which it is.
        number: of the part.
    """

    job: Job
    number: int

    @classmethod
    def of(cls, job: Job, number: int, lines: int) -> DropDuplicates:
        """The task, for a part of so many lines."""
        return cls(job.dealt(number), lines, job, number)

    @property
    def title(self) -> str:
        return f"dropping the duplicates of part {self.number + 1} of {self.job.parts}"

    def run(self) -> None:
        encoded = self.job.encoded(self.number)
        try:
            chunks = read_chunks(encoded)
        except FileNotFoundError:
            if self.done:   # by another process, meanwhile
                return
            raise
        shapes = [chunk.keys.shape for chunk in chunks if chunk.keys is not None]
        seen = seen_in_part(self.job, self.number, sum(rows * keys for rows, keys in shapes))
        stops = np.cumsum([rows * keys for rows, keys in shapes])[:-1]
        shares = [share.reshape(shape) for share, shape in zip(np.split(seen, stops), shapes, strict=True)]
        write_dealt(self.job, self.number, [without_seen(*both) for both in zip(chunks, shares, strict=True)])
        encoded.unlink(missing_ok=True)


def write_dealt(job: Job, number: int, chunks: Sequence[EncodedChunk]) -> None:
    """Write the pairs of a part by shard, and their statistics."""
    statistics = Statistics(job.pair_filter.max_length, job.factors, job.linked)
    for chunk in chunks:
        statistics.add(chunk)
    write_grouped(job.dealt(number), list(by_shard(chunks, job.shards, job.seed)), {"statistics": statistics.state()})


def by_shard(chunks: Sequence[EncodedChunk], shards: int, seed: int) -> Iterator[Column]:
    """The columns of shards (see `ShardInfo.columns`), by shard; inside a shard the pairs keep their order.

    The shard of a pair is drawn by (seed, line number). Training shuffles within a shard only: so each shard is a
    sample of the whole corpus (as in Sockeye).
    """
    lines = np.concatenate([chunk.line_numbers for chunk in chunks])
    whose = (line_hash(lines, seed) % np.uint64(shards)).astype(np.int64)
    order = np.argsort(whose, kind="stable")
    dealing = _Dealing(order, whose[order], shards)
    lengths = {name: np.concatenate([getattr(chunk, name) for chunk in chunks])
               for name in ("source_lengths", "target_lengths")}
    linked = chunks[0].link_counts is not None
    if linked:
        lengths["link_counts"] = np.concatenate([chunk.link_counts for chunk in chunks])
    for values in lengths.values():
        yield dealing.pairs(values.astype("<i4"))
    yield dealing.elements(lengths["source_lengths"], _joined(chunks, "source_ids"))
    yield dealing.elements(lengths["target_lengths"], _joined(chunks, "target_ids"))
    if chunks[0].source_factors is not None:
        for row in _joined(chunks, "source_factors"):
            yield dealing.elements(lengths["source_lengths"], row)
    if linked:
        for row in _joined(chunks, "links"):
            yield dealing.elements(lengths["link_counts"], row)


def _joined(chunks: Sequence[EncodedChunk], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(chunk, name) for chunk in chunks], axis=-1)


class _Dealing:
    """Puts values of pairs into the order of the shards, without a loop over pairs.

    Args:
        order: int `[pairs]`, the pair that comes first, and so on.
        whose: int `[pairs]`, the shard of each of these.
        shards: how many there are.
    """

    def __init__(self, order: NDArray[np.intp], whose: NDArray[np.int64], shards: int) -> None:
        self._order, self._whose, self._shards = order, whose, shards

    def pairs(self, values: NDArray[Any]) -> Column:
        """One value a pair."""
        return Column(values[self._order], np.bincount(self._whose, minlength=self._shards))

    def elements(self, lengths: NDArray[np.int32], values: NDArray[Any]) -> Column:
        """As many values a pair as `lengths` says."""
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[self._order]
        lengths = lengths[self._order].astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        counts = np.diff(offsets[np.searchsorted(self._whose, np.arange(self._shards + 1))])
        return Column(values[places], counts)
