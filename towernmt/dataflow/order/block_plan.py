"""The plan of one block for one epoch: which pairs are in which batch, and the order of the batches.

A plan needs only the lengths of the sentences and holds only indices. It is a pure function of its
arguments: the random numbers are raw output of a counter-based generator (Philox; Salmon et al. 2011),
ordered by sorting, so it does not change with NumPy's version as `Generator.permutation` may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.order.buckets import Buckets

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class BlockPlan:
    """The batches of one block.

    Attributes:
        order: int64 `[pairs]`, indices of the block's pairs, those of one batch side by side.
        starts: int64 `[batches]`, where in `order` each batch begins, in the order of reading.
        ends: int64 `[batches]`, where each batch ends (exclusive).
    """

    order: IntArray
    starts: IntArray
    ends: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def pairs_of(self, batch: int) -> IntArray:
        """int64 `[sentences of the batch]`: indices of the block's pairs."""
        return self.order[self.starts[batch]:self.ends[batch]]


def plan_block(source_lengths: IntArray, target_lengths: IntArray, buckets: Buckets, batch_type: str,
               limit: int, sort_by_length: bool, shuffle_key: Sequence[int] | None) -> BlockPlan:
    """Shuffle the pairs, sort them by bucket (and length), cut them into batches, shuffle the batches.

    A batch is filled on from one bucket into the next, so that a bucket's rest does not make a small batch.

    Args:
        source_lengths: int64 `[pairs]`, tokens with EOS.
        target_lengths: int64 `[pairs]`, tokens with EOS.
        buckets: see `towernmt.dataflow.order.buckets`.
        batch_type: one of `batch_settings.BATCH_TYPES`, see `cut`.
        limit: the most a batch may hold, in the unit of `batch_type`.
        sort_by_length: also sort inside each bucket, by the longest side, then by how much longer it is.
        shuffle_key: whole numbers from 0 that name the random order; None keeps the corpus's order among
            pairs that sort equal, and the batches by length.
    """
    order = np.arange(len(source_lengths)) if shuffle_key is None else permutation([*shuffle_key, 0],
                                                                                  len(source_lengths))
    source, target = source_lengths[order], target_lengths[order]
    keys = [buckets.assign(source, target)]
    if sort_by_length:
        # The second key rises and falls in turn, so that neighbours have similar lengths on both sides even where
        # the first key changes.
        longest, difference = np.maximum(source, target), source - target
        keys = [np.where(longest % 2 == 0, difference, -difference), longest, *keys]
    by_length = np.lexsort(keys)
    order = order[by_length]
    ends = cut(source[by_length], target[by_length], batch_type, limit)
    starts = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    if shuffle_key is not None:
        shuffled = permutation([*shuffle_key, 1], len(ends))
        starts, ends = starts[shuffled], ends[shuffled]
    return BlockPlan(order, starts, ends)


def permutation(key: Sequence[int], size: int) -> IntArray:
    """int64 `[size]`: the numbers 0 to size-1 in the random order that belongs to `key` (whole numbers from 0)."""
    bits = np.random.Philox(np.random.SeedSequence(list(key)))
    return np.argsort(bits.random_raw(size), kind="stable")


def cut(source_lengths: IntArray, target_lengths: IntArray, batch_type: str, limit: int) -> IntArray:
    """Cut pairs, in their order, into the longest batches within the limit.

    A single pair over the limit is a batch of its own.

    Args:
        source_lengths: int64 `[pairs]`, tokens with EOS.
        target_lengths: int64 `[pairs]`, tokens with EOS.
        batch_type: what `limit` counts: 'target': target tokens, without padding; 'source+target':
            sentences x (longest source + longest target); 'longest': sentences x longest sentence of
            either side; 'sentences': pairs.
        limit: the most a batch may hold.
    Returns:
        int64 `[batches]`: the end (exclusive) of each batch.
    """
    if batch_type == "sentences":
        pairs = len(target_lengths)
        return np.minimum(np.arange(limit, pairs + limit, limit, dtype=np.int64), pairs)
    if batch_type == "target":
        return _cut_by_sum(target_lengths, limit)
    if batch_type == "longest":
        return _cut_by_area(np.maximum(source_lengths, target_lengths)[None], limit)
    return _cut_by_area(np.stack([source_lengths, target_lengths]), limit)


def _cut_by_sum(lengths: IntArray, limit: int) -> IntArray:
    total = np.concatenate([[0], np.cumsum(lengths)])
    ends = []
    start, pairs = 0, len(lengths)
    while start < pairs:
        start = max(start + 1, int(np.searchsorted(total, total[start] + limit, side="right")) - 1)
        ends.append(start)
    return np.array(ends, dtype=np.int64)


def _cut_by_area(lengths: IntArray, limit: int) -> IntArray:
    # lengths: [sides, pairs]; the area of a batch is its sentences x the sum over sides of the longest.
    ends = []
    start, pairs = 0, lengths.shape[1]
    while start < pairs:
        # No batch from here can hold more sentences than if all were as short as the first.
        window = max(1, limit // int(lengths[:, start].sum()))
        longest = np.maximum.accumulate(lengths[:, start:start + window], axis=1).sum(axis=0)
        area = longest * np.arange(1, len(longest) + 1)  # never falls
        start += max(1, int(np.searchsorted(area, limit, side="right")))
        ends.append(start)
    return np.array(ends, dtype=np.int64)
