"""The plan of one block for one epoch: length buckets, the pairs of each batch, and the order of the batches.

A plan needs only the lengths of the sentences and contains only indices. It is a pure function of its arguments: the
random numbers are raw output of a counter-based generator (Philox; Salmon et al. 2011), ordered by sorting, so it
does not change with NumPy's version as `Generator.permutation` may.

**Length buckets.** Sentence pairs of similar length share a batch, so that little of it is padding. The scheme is
Sockeye's (Hieber et al. 2017, "Sockeye: A Toolkit for Neural Machine Translation"): the target bounds are (w, 2w, 3w,
...) up to the longest sentence, the source bounds follow from them by the corpus's mean length ratio, and a pair goes
to the smallest bucket that fits both of its sides. All lengths here are tokens with EOS, which are the positions
a sentence takes in a batch.

**Epoch size.** Batches, tokens and padding of an epoch are counted from plans, or estimated before any plan exists.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class BlockPlan:
    """The batches of one block.

    Attributes:
        order: int64 `[pairs]`, indices of the block's pairs, grouped by batch.
        starts: int64 `[batches]`, beginning of each batch in `order`, in the order of reading.
        ends: int64 `[batches]`, end of each batch in `order` (exclusive).
    """

    order: IntArray
    starts: IntArray
    ends: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def batch_pairs(self, batch: int) -> IntArray:
        """Return the indices of a batch's pairs in the block, int64 `[sentences of the batch]`."""
        return self.order[self.starts[batch]:self.ends[batch]]


def plan_block(source_lengths: IntArray, target_lengths: IntArray, buckets: Buckets, batch_type: str,
               limit: int, sort_by_length: bool, shuffle_key: Sequence[int] | None) -> BlockPlan:
    """Shuffle the pairs, sort them by bucket (and length), cut them into batches, and shuffle the batches.

    A batch continues from one bucket into the next, so that the rest of a bucket does not make a small batch.

    Args:
        source_lengths: int64 `[pairs]`, tokens including EOS.
        target_lengths: int64 `[pairs]`, tokens including EOS.
        buckets: length buckets of the corpus.
        batch_type: one of `batch_settings.BATCH_TYPES`, see `cut`.
        limit: maximum size of a batch, in the unit of `batch_type`.
        sort_by_length: also sort inside each bucket, by the longest side, then by the difference of the sides.
        shuffle_key: whole numbers from 0 that determine the random order. None keeps the corpus's order among pairs
            that sort equal, and the batches in the order of length.
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
    """Return int64 `[size]`: the numbers 0 to size-1 in the random order determined by `key` (whole numbers from 0)."""
    bits = np.random.Philox(np.random.SeedSequence(list(key)))
    return np.argsort(bits.random_raw(size), kind="stable")


def cut(source_lengths: IntArray, target_lengths: IntArray, batch_type: str, limit: int) -> IntArray:
    """Cut pairs, in their order, into the longest batches within the limit.

    A single pair over the limit becomes a separate batch.

    Args:
        source_lengths: int64 `[pairs]`, tokens including EOS.
        target_lengths: int64 `[pairs]`, tokens including EOS.
        batch_type: the unit of `limit`. 'target': target tokens, without padding; 'source+target':
            sentences x (longest source + longest target); 'longest': sentences x longest sentence of
            either side; 'sentences': pairs.
        limit: maximum size of a batch.

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


@dataclass(frozen=True)
class Buckets:
    """Bounds of the buckets, ascending; a bucket holds lengths up to and including its bounds.

    Attributes:
        source_bounds: int64 `[buckets]`, tokens including EOS.
        target_bounds: int64 `[buckets]`, tokens including EOS.
    """

    source_bounds: NDArray[np.int64]
    target_bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target_bounds)

    def assign(self, source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer]
               ) -> NDArray[np.int64]:
        """Return the bucket of each pair.

        Args:
            source_lengths: `[pairs]`, tokens including EOS.
            target_lengths: `[pairs]`, tokens including EOS.

        Returns:
            int64 `[pairs]`: the smallest bucket that fits both sides. The last bucket also takes longer pairs:
            lengths are filtered when the corpus is prepared, and never here.
        """
        bucket = np.maximum(np.searchsorted(self.source_bounds, source_lengths),
                            np.searchsorted(self.target_bounds, target_lengths))
        return np.minimum(bucket, len(self) - 1)


def define_buckets(width: int, max_length: int, length_ratio: float) -> Buckets:
    """Return buckets of equal target width, with source bounds by the mean length ratio.

    Args:
        width: step of the target bounds in tokens; 0 makes a single bucket (no bucketing).
        max_length: bound of the last bucket on the target side, tokens including EOS.
        length_ratio: the corpus's mean of source length / target length.

    Raises:
        SettingsError: width is below 0 or max_length below 1.
        DataError: length_ratio is not a positive number.
    """
    if width < 0:
        raise SettingsError(f"bucket_width={width}: expected a number of tokens, or 0 for no bucketing.")
    if max_length < 1:
        raise SettingsError(f"max_length={max_length}: expected at least 1 token.")
    if not (math.isfinite(length_ratio) and length_ratio > 0):
        raise DataError(f"The corpus's mean length ratio (source/target) is {length_ratio}, but must be a positive "
                        "number. The statistics of the corpus are damaged: prepare it again.")
    target = np.arange(width, max_length + width, width, dtype=np.int64) if width else np.array([max_length])
    target = np.minimum(target, max_length)
    source = np.maximum(np.ceil(target * length_ratio - 1e-9), 1).astype(np.int64)
    return Buckets(source, target.astype(np.int64))


@dataclass(frozen=True)
class EpochSize:
    """The size of an epoch, and the share of its positions that are padding.

    Attributes:
        batches, pairs: their numbers.
        source_tokens, target_tokens: tokens including EOS.
        source_positions, target_positions: sizes of the padded arrays.
    """

    batches: int = 0
    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    source_positions: int = 0
    target_positions: int = 0

    @property
    def source(self) -> float:
        """Share of the source positions that are padding, 0 to 1."""
        return 1 - self.source_tokens / self.source_positions

    @property
    def target(self) -> float:
        """Share of the target positions that are padding, 0 to 1."""
        return 1 - self.target_tokens / self.target_positions

    def mean_batch(self, batch_type: str) -> float:
        """Return the mean size of a batch, in the unit of `batch_type` (an approximation for "longest")."""
        sizes = {"target": self.target_tokens, "source+target": self.source_positions + self.target_positions,
                 "longest": max(self.source_positions, self.target_positions), "sentences": self.pairs}
        return sizes[batch_type] / self.batches

    def times(self, factor: float) -> EpochSize:
        """Return the size of an epoch of a corpus that is `factor` times as large, rounded."""
        return EpochSize(*(round(count * factor) for count in astuple(self)))

    def __add__(self, other: EpochSize) -> EpochSize:
        return EpochSize(*map(operator.add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return (f"{self.batches} batches of {self.pairs} pairs, {self.source_tokens} source and "
                f"{self.target_tokens} target tokens; padding {self.source:.1%} of the source positions, "
                f"{self.target:.1%} of the target positions")


def size_of_plan(plan: BlockPlan, source_lengths: IntArray, target_lengths: IntArray) -> EpochSize:
    """Return the total size of the batches of one block.

    Args:
        plan: the block's plan.
        source_lengths: int64 `[pairs]`, tokens including EOS.
        target_lengths: int64 `[pairs]`, tokens including EOS.
    """
    if not len(plan):
        return EpochSize()
    starts = np.sort(plan.starts)
    sentences = np.diff(starts, append=len(source_lengths))
    positions = [int(np.maximum.reduceat(lengths[plan.order], starts) @ sentences)
                 for lengths in (source_lengths, target_lengths)]
    return EpochSize(len(plan), len(source_lengths), int(source_lengths.sum()), int(target_lengths.sum()), *positions)
