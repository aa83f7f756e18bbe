"""Batches: the corpus as padded arrays, in an order that is a pure function of (seed, epoch, corpus).

Blocks come in shuffled order; inside a block the pairs are shuffled, bucketed by length and cut into
batches, and the batches are shuffled (see `block_plan`). Any number of readers can share the order:
reader i of N takes every N-th batch from the i-th on. Reading can begin at any position.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import check_ranges
from towernmt.dataflow.order.batch import Batch, make_batch
from towernmt.dataflow.order.batch_settings import BatchSettings
from towernmt.dataflow.order.block_plan import BlockPlan, IntArray, permutation, plan_block
from towernmt.dataflow.order.buckets import define_buckets
from towernmt.dataflow.order.epoch_size import EpochSize, size_of_plan
from towernmt.dataflow.order.position import Position
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.prepared.prepared_data import PreparedData

_MIN_PLANS = 3  # so many plans are always kept: readers are in neighbouring blocks
_MAX_COUNTS = 100_000
_SAMPLED_PAIRS = 1_000_000  # at most so many are planned for the estimate of an epoch


class BlockSource(Protocol):
    """What `Batches` reads: a corpus in blocks, such as `PreparedData`."""

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""

    @property
    def length_ratio(self) -> float:
        """Mean over the pairs of source length / target length."""

    def read_block(self, index: int) -> PairBlock:
        """The pairs of one block; always the same for the same index."""


class Batches:
    """The batches of a corpus, for any number of readers in any number of threads.

    Attributes:
        num_blocks: how many blocks an epoch has.
    """

    planned_pairs = 1_000_000  # more plans are kept while they hold no more pairs than this (8 bytes a pair)

    def __init__(self, data: BlockSource, settings: BatchSettings, epochs: int | None = None,
                 alignments: bool = False) -> None:
        """
        Args:
            data: the corpus.
            settings: sizes and order.
            epochs: how many passes there are, counted from the very first, not from where a reader begins;
                None for no end.
            alignments: whether the batches have alignments; then the corpus must have them.
        Raises:
            DataError: the corpus is empty.
            SettingsError: a setting that cannot work.
        """
        check_batch_settings(settings, epochs)
        self._data = data
        self.num_blocks = data.num_blocks
        self._settings = settings
        self._epochs = epochs
        self._alignments = alignments
        if _is_empty(data):
            raise DataError("The corpus holds no sentence pair, so there is nothing to make batches of; see "
                            "the preparation's report for what was dropped and why.")
        self._buckets = define_buckets(settings.bucket_width, settings.max_length, data.length_ratio)
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[int, int], tuple[PairBlock, BlockPlan]] = OrderedDict()
        self._counts: dict[tuple[int, int], int] = {}

    def read(self, position: Position | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[Position, Batch]]:
        """Yield every `step`-th batch from `position` on, beginning with the `start`-th.

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
                self._read_ahead(epoch, blocks[place])
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
        """How many batches an epoch has, exactly; opens and checks every block.

        The same for all epochs if pairs are sorted by length; else the random order moves the cuts a little.
        """
        return sum(self._count(epoch, block) for block in range(self.num_blocks))

    def padding_waste(self, epoch: int = 0) -> EpochSize:
        """Tokens and padding of all the batches of an epoch; opens and checks every block."""
        size = EpochSize()
        for index in range(self.num_blocks):
            size += self._size_of_block(epoch, index)
        return size

    @cached_property
    def estimated_size(self) -> EpochSize:
        """What an epoch holds, estimated without reading the corpus.

        It is estimated from the histogram of lengths that prepared data have: the batches of one block that is like the
        whole corpus, as many times as there are such blocks. It is exact where the corpus is one block and
        pairs are sorted by length. Of data without the histogram, one block is read, which is the first of
        the first epoch. A corpus of another kind is read whole.
        """
        data = self._data
        if not isinstance(data, PreparedData):
            return self.padding_waste()
        if data.pair_lengths is None:
            size = self._size_of_block(0, self._block_order(0)[0])
        else:
            pairs = min(max(data.pairs // data.num_blocks, 1), _SAMPLED_PAIRS)
            source, target = (lengths + 1 for lengths in data.pair_lengths.sample(pairs))  # with EOS
            size = size_of_plan(self._plan_lengths(source, target, [self._settings.seed, 0]), source, target)
        return size.times(data.pairs / size.pairs)

    def estimated_batches_per_epoch(self) -> int:
        """The estimated number of batches of an epoch; see `estimated_size`."""
        return self.estimated_size.batches

    def _block_order(self, epoch: int) -> list[int]:
        return self._shuffled(epoch, self.num_blocks)

    def _shuffled(self, epoch: int, count: int) -> list[int]:
        if not self._settings.shuffle:
            return list(range(count))
        return [int(block) for block in permutation([self._settings.seed, epoch], count)]

    def _read_block(self, epoch: int, index: int) -> PairBlock:
        return self._data.read_block(index)

    def _read_ahead(self, epoch: int, index: int) -> None:
        """A reader is at a block: what takes long to read may be begun behind it. Blocks of files are there at once."""

    def _size_of_block(self, epoch: int, index: int) -> EpochSize:
        block, plan = self._plan(epoch, index)
        return size_of_plan(plan, *_lengths(block))

    def _exists(self, position: Position) -> bool:
        if min(position[:3]) < 0 or position.cursor is not None or position.block >= self.num_blocks:
            return False
        return position.batch == 0 or position.batch < self._count(
            position.epoch, self._block_order(position.epoch)[position.block])

    def _after(self, epoch: int, place: int, index: int, count: int) -> Position:
        if index + 1 < count:
            return Position(epoch, place, index + 1)
        if place + 1 < self.num_blocks:
            return Position(epoch, place + 1, 0)
        return Position(epoch + 1, 0, 0)

    def _count(self, epoch: int, block: int) -> int:
        """Batches of a block; remembered, so that a reader can skip a block without planning it again."""
        count = self._counts.get((epoch, block))
        return len(self._plan(epoch, block)[1]) if count is None else count

    def _plan(self, epoch: int, index: int) -> tuple[PairBlock, BlockPlan]:
        """A block with its plan. Computed once, under the lock: the other readers need the same one next."""
        key = (epoch, index)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
            block = self._read_block(epoch, index)
            settings = self._settings
            plan = self._plan_lengths(*_lengths(block), [settings.seed, epoch, index] if settings.shuffle else None)
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.clear()
            self._counts[key] = len(plan)
            self._plans[key] = block, plan
            held = sum(len(planned) for planned, _ in self._plans.values())
            while len(self._plans) > _MIN_PLANS and held > self.planned_pairs:
                held -= len(self._plans.popitem(last=False)[1][0])
            return block, plan

    def _plan_lengths(self, source: IntArray, target: IntArray, shuffle_key: list[int] | None) -> BlockPlan:
        settings = self._settings
        return plan_block(source, target, self._buckets, settings.batch_type, settings.batch_tokens,
                          settings.sort_by_length, shuffle_key)


def _is_empty(data: BlockSource) -> bool:
    if isinstance(data, PreparedData):
        return not data.pairs  # the manifest tells
    return not any(len(data.read_block(block)) for block in range(data.num_blocks))


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
