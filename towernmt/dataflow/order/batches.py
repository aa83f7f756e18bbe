"""Batches: the corpus as padded arrays, in an order that is a pure function of (seed, epoch, corpus).

Blocks come in shuffled order; inside a block the pairs are shuffled, bucketed by length and cut into
batches, and the batches shuffled (see `plan`). Any number of readers share the order between them,
reader i of N taking every N-th batch from the i-th on, and any position resumes it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import check_ranges
from towernmt.dataflow.order.batch import Batch, make_batch
from towernmt.dataflow.order.batch_settings import BatchSettings
from towernmt.dataflow.order.block_plan import BlockPlan, IntArray, permutation, plan_block
from towernmt.dataflow.order.buckets import define_buckets
from towernmt.dataflow.order.position import Position
from towernmt.dataflow.prepared.pair_block import PairBlock

_MIN_PLANS = 3  # plans kept whatever their size: readers stand in neighbouring blocks
_PLANNED_PAIRS = 1_000_000  # more plans are kept while they hold no more pairs than this (8 bytes a pair)
_MAX_COUNTS = 100_000


class BlockSource(Protocol):
    """What `Batches` reads: a corpus in blocks, such as `towernmt.dataflow.prepared.prepared_data.PreparedData`."""

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""

    @property
    def length_ratio(self) -> float:
        """Mean over the pairs of source length / target length."""

    def read_block(self, index: int) -> PairBlock:
        """The pairs of one block; always the same for the same index."""


@dataclass(frozen=True)
class PaddingWaste:
    """What an epoch holds, and the share of its positions that are padding.

    Attributes:
        batches, pairs: how many.
        source_tokens, target_tokens: tokens with EOS.
        source_positions, target_positions: sizes of the padded arrays.
    """

    batches: int
    pairs: int
    source_tokens: int
    target_tokens: int
    source_positions: int
    target_positions: int

    @property
    def source(self) -> float:
        """Share of the source positions that are padding, 0 to 1."""
        return 1 - self.source_tokens / self.source_positions

    @property
    def target(self) -> float:
        """Share of the target positions that are padding, 0 to 1."""
        return 1 - self.target_tokens / self.target_positions

    def mean_size(self, batch_type: str) -> float:
        """How much a batch holds on average, in the unit of `batch_type` (of "longest", nearly)."""
        sizes = {"target": self.target_tokens, "source+target": self.source_positions + self.target_positions,
                 "longest": max(self.source_positions, self.target_positions), "sentences": self.pairs}
        return sizes[batch_type] / self.batches

    def __str__(self) -> str:
        return (f"{self.batches} batches of {self.pairs} pairs, {self.source_tokens} source and "
                f"{self.target_tokens} target tokens; padding {self.source:.1%} of the source positions, "
                f"{self.target:.1%} of the target positions")


class Batches:
    """The batches of a corpus, for any number of readers in any number of threads."""

    def __init__(self, data: BlockSource, settings: BatchSettings, epochs: int | None = None,
                 alignments: bool = False) -> None:
        """
        Args:
            data: the corpus.
            settings: sizes and order.
            epochs: how many passes there are, counted from the very first, not from where a reader begins;
                None for no end.
            alignments: whether the batches have them, which the corpus must have then.
        Raises:
            DataError: the corpus is empty.
            SettingsError: a setting that cannot work.
        """
        check_batch_settings(settings, epochs)
        self._data = data
        self._settings = settings
        self._epochs = epochs
        self._alignments = alignments
        if not any(len(data.read_block(block)) for block in range(data.num_blocks)):
            raise DataError("The corpus holds no sentence pair, so there is nothing to make batches of; see "
                            "the preparation's report for what was dropped and why.")
        self._buckets = define_buckets(settings.bucket_width, settings.max_length, data.length_ratio)
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[int, int], tuple[PairBlock, BlockPlan]] = OrderedDict()
        self._counts: dict[tuple[int, int], int] = {}

    def read(self, position: Position | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[Position, Batch]]:
        """Every `step`-th batch of the order from `position` on, beginning with the `start`-th.

        Reader i of N calls `read(position, i, N)`; what they yield in turn is what `read(position)` yields.

        Args:
            position: where to begin; None for the very beginning.
            start: batches to leave out first.
            step: distance from one batch to the next.
        Yields:
            (the position after the batch, the batch). After the last batch of a block that is the beginning
            of the next block, after the last block that of the next epoch. Ends after the last of `epochs`.
        Raises:
            DataError: the position lies outside this corpus.
            ValueError: start below 0 or step below 1.
        """
        if start < 0 or step < 1:
            raise ValueError(f"read(start={start}, step={step}): expected start from 0 and step from 1")
        begin = position or Position()
        if not self._exists(begin):
            raise DataError(f"The data position {begin.to_json()} lies outside this corpus: the corpus or "
                            "its batch settings have changed since the checkpoint; restore them.")
        return self._read(begin, start, step)

    def _read(self, position: Position, skip: int, step: int) -> Iterator[tuple[Position, Batch]]:
        epoch, ordinal, first, _ = position
        while self._epochs is None or epoch < self._epochs:
            blocks = self._block_order(epoch)
            for place in range(ordinal, len(blocks)):
                count = self._count(epoch, blocks[place])
                if first + skip < count:
                    block, plan = self._plan(epoch, blocks[place])
                    for index in range(first + skip, count, step):
                        batch = make_batch(block, plan.pairs_of(index), self._alignments)
                        yield self._after(epoch, place, index, count), batch
                    skip = (first + skip - count) % step
                else:
                    skip -= count - first
                first = 0
            epoch, ordinal = epoch + 1, 0

    def batches_per_epoch(self, epoch: int = 0) -> int:
        """How many batches an epoch has. Only the lengths of the sentences are read.

        The same for all epochs if pairs are sorted by length; else the random order moves the cuts a little.
        """
        return sum(self._count(epoch, block) for block in range(self._data.num_blocks))

    def padding_waste(self, epoch: int = 0) -> PaddingWaste:
        """Tokens and padding of all the batches of an epoch. Only the lengths of the sentences are read."""
        batches, pairs = 0, 0
        tokens, positions = [0, 0], [0, 0]
        for index in range(self._data.num_blocks):
            block, plan = self._plan(epoch, index)
            if not len(plan):
                continue
            batches += len(plan)
            pairs += len(block)
            starts = np.sort(plan.starts)
            sentences = np.diff(starts, append=len(block))
            for side, lengths in enumerate(_lengths(block)):
                tokens[side] += int(lengths.sum())
                positions[side] += int(np.maximum.reduceat(lengths[plan.order], starts) @ sentences)
        return PaddingWaste(batches, pairs, tokens[0], tokens[1], positions[0], positions[1])

    def _block_order(self, epoch: int) -> list[int]:
        if not self._settings.shuffle:
            return list(range(self._data.num_blocks))
        return [int(block) for block in permutation([self._settings.seed, epoch], self._data.num_blocks)]

    def _exists(self, position: Position) -> bool:
        if min(position[:3]) < 0 or position.cursor is not None or position.block >= self._data.num_blocks:
            return False
        return position.batch == 0 or position.batch < self._count(
            position.epoch, self._block_order(position.epoch)[position.block])

    def _after(self, epoch: int, place: int, index: int, count: int) -> Position:
        if index + 1 < count:
            return Position(epoch, place, index + 1)
        if place + 1 < self._data.num_blocks:
            return Position(epoch, place + 1, 0)
        return Position(epoch + 1, 0, 0)

    def _count(self, epoch: int, block: int) -> int:
        """Batches of a block; remembered, so that a reader passes over a block without its plan."""
        count = self._counts.get((epoch, block))
        return len(self._plan(epoch, block)[1]) if count is None else count

    def _plan(self, epoch: int, index: int) -> tuple[PairBlock, BlockPlan]:
        """A block with its plan. Computed once, under the lock: the other readers need the same one next."""
        key = (epoch, index)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
            block = self._data.read_block(index)
            settings = self._settings
            shuffle_key = [settings.seed, epoch, index] if settings.shuffle else None
            plan = plan_block(*_lengths(block), self._buckets, settings.batch_type, settings.batch_tokens,
                              settings.sort_by_length, shuffle_key)
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.clear()
            self._counts[key] = len(plan)
            self._plans[key] = block, plan
            held = sum(len(planned) for planned, _ in self._plans.values())
            while len(self._plans) > _MIN_PLANS and held > _PLANNED_PAIRS:
                held -= len(self._plans.popitem(last=False)[1][0])
            return block, plan


def _lengths(block: PairBlock) -> tuple[IntArray, IntArray]:
    """int64 `[pairs]` each: source and target tokens with EOS."""
    return block.source_lengths + 1, block.target_lengths + 1


def check_batch_settings(settings: BatchSettings, epochs: int | None) -> None:
    """Raises:
        SettingsError: a setting that cannot work.
    """
    check_ranges(settings)
    if epochs is not None and epochs < 1:
        raise SettingsError(f"epochs={epochs}: expected at least 1, or none for no end.")
