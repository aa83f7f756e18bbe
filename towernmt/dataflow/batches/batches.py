"""Batches of prepared data as padded arrays, in an order that is a pure function of (seed, epoch, corpus).

Blocks come in shuffled order; inside a block the pairs are shuffled, bucketed by length and divided into batches, and
the batches are shuffled (see `block_plan`). Any number of readers can share the order: reader i of N takes every N-th
batch from the i-th on. Reading can begin at any position.

`SampledBatches` samples the segmentations again in each epoch. Its block is a window, a range of a shard. The next
window is sampled in the background while this one is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any, Protocol

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import check_ranges
from towernmt.dataflow.batches.batch import Batch, Position, make_batch
from towernmt.dataflow.batches.batch_settings import BatchSettings, StreamBatchSettings
from towernmt.dataflow.batches.block_plan import (
    BlockPlan,
    EpochSize,
    IntArray,
    define_buckets,
    permutation,
    plan_block,
    size_of_plan,
)
from towernmt.dataflow.batches.windows import BackgroundThread, SampledWindows
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.shards import PairBlock

_MIN_PLANS = 3  # plans that are always kept, with their blocks: readers are in neighbouring blocks
_MAX_COUNTS = 100_000
_SAMPLED_PAIRS = 1_000_000  # maximum number of pairs that are planned for the estimate of an epoch


class BlockSource(Protocol):
    """A corpus in blocks, such as `PreparedData`, which `Batches` reads."""

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""

    @property
    def length_ratio(self) -> float:
        """Mean of source length / target length over the pairs."""

    def read_block(self, index: int) -> PairBlock:
        """Return the pairs of one block. They are always the same for the same index."""


class Batches:
    """The batches of a corpus, for any number of readers in any number of threads.

    Args:
        data: the corpus.
        settings: size and order of the batches.
        epochs: number of passes, counted from the first one, not from where a reader begins; None for no end.
        alignments: whether the batches contain alignments, which the corpus must then have.

    Attributes:
        num_blocks: number of blocks in an epoch.

    Raises:
        DataError: the corpus is empty.
        SettingsError: a setting has an impossible value.
    """

    planned_pairs = 1_000_000  # more plans are kept, without blocks, up to this number of pairs (8 bytes a pair)

    def __init__(self, data: BlockSource, settings: BatchSettings, epochs: int | None = None,
                 alignments: bool = False) -> None:
        check_batch_settings(settings, epochs)
        self._data = data
        self.num_blocks = data.num_blocks
        self._settings = settings
        self._epochs = epochs
        self._alignments = alignments
        if _is_empty(data):
            raise DataError("The corpus contains no sentence pairs. The report of the preparation lists the dropped "
                            "pairs and the reasons; change the filters or the text.")
        self._buckets = define_buckets(settings.bucket_width, settings.max_length, data.length_ratio)
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[int, int], BlockPlan] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], PairBlock] = OrderedDict()   # an open file each: the last few
        self._counts: dict[tuple[int, int], int] = {}

    def read(self, position: Position | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[Position, Batch]]:
        """Yield every `step`-th batch from `position` on, beginning with the `start`-th.

        Reader i of N calls `read(position, i, N)`. The readers in turn yield the batches that `read(position)` yields.

        Args:
            position: address of the first batch; None for the beginning of the first epoch.
            start: number of batches to skip first.
            step: distance from one batch to the next.

        Yields:
            (the position after the batch, the batch). The position after the last batch of a block is the beginning
            of the next block; after the last block, of the next epoch.

        Raises:
            DataError: the position lies outside this corpus.
            ValueError: start is below 0 or step below 1.
        """
        if start < 0 or step < 1:
            raise ValueError(f"read(start={start}, step={step}): expected start from 0 and step from 1")
        begin = position or Position()
        if not self._exists(begin):
            raise DataError(f"The data position {begin.to_json()} is outside this corpus, since the corpus or its "
                            "batch settings have changed since the checkpoint. Restore them.")
        return self._read(begin, start, step)

    def _read(self, position: Position, skip: int, step: int) -> Iterator[tuple[Position, Batch]]:
        epoch, ordinal, first = position[:3]
        while self._epochs is None or epoch < self._epochs:
            blocks = self._block_order(epoch)
            for block_position in range(ordinal, len(blocks)):
                count = self._count(epoch, blocks[block_position])
                self._read_ahead(epoch, blocks[block_position])
                if first + skip < count:
                    block, plan = self._plan(epoch, blocks[block_position])
                    for index in range(first + skip, count, step):
                        batch = make_batch(block, plan.batch_pairs(index), self._alignments)
                        yield self._after(epoch, block_position, index, count), batch
                    skip = (first + skip - count) % step
                else:
                    skip -= count - first
                first = 0
            epoch, ordinal = epoch + 1, 0

    @property
    def position_settings(self) -> dict[str, Any]:
        """The settings and sizes that a position inside an epoch depends on, by name."""
        corpus = getattr(self._data, "position_settings", {"number of blocks": self._data.num_blocks})
        return {**corpus, **self._settings.position_settings(), "data.subword_sampling": False,
                "data.modifiers": []}

    def batches_per_epoch(self, epoch: int = 0) -> int:
        """Return the exact number of batches in an epoch. Reads and checks every block.

        The number is the same for all epochs if pairs are sorted by length. Otherwise it varies a little with the
        random order.
        """
        return sum(self._count(epoch, block) for block in range(self.num_blocks))

    def padding_waste(self, epoch: int = 0) -> EpochSize:
        """Return the tokens and padding of all batches of an epoch. Reads and checks every block."""
        size = EpochSize()
        for index in range(self.num_blocks):
            size += self._size_of_block(epoch, index)
        return size

    @cached_property
    def estimated_size(self) -> EpochSize:
        """The size of an epoch, estimated without reading the corpus.

        Prepared data store a histogram of lengths. The estimate is the size of one block with this distribution, times
        the number of blocks. It is exact if the corpus is one block and pairs are sorted by length. Other kinds of
        corpora are read completely.
        """
        data = self._data
        if not isinstance(data, PreparedData):
            return self.padding_waste()
        pairs = min(max(data.pairs // data.num_blocks, 1), _SAMPLED_PAIRS)
        source, target = (lengths + 1 for lengths in data.pair_lengths.sample(pairs))  # with EOS
        size = size_of_plan(self._plan_lengths(source, target, [self._settings.seed, 0]), source, target)
        return size.times(data.pairs / size.pairs)

    def estimated_batches_per_epoch(self) -> int:
        """Return the estimated number of batches in an epoch; see `estimated_size`."""
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
        """Prepare the block after this one in the background, if blocks take long to read; those of files do not."""

    def _size_of_block(self, epoch: int, index: int) -> EpochSize:
        block, plan = self._plan(epoch, index)
        return size_of_plan(plan, *block.lengths_with_eos)

    def _exists(self, position: Position) -> bool:
        if min(position[:3]) < 0 or position.cursor is not None or position.block >= self.num_blocks:
            return False
        return position.batch == 0 or position.batch < self._count(
            position.epoch, self._block_order(position.epoch)[position.block])

    def _after(self, epoch: int, block: int, batch: int, batches: int) -> Position:
        """Return the position after a batch of the `block`-th block, which has `batches` batches."""
        if batch + 1 < batches:
            return Position(epoch, block, batch + 1)
        if block + 1 < self.num_blocks:
            return Position(epoch, block + 1, 0)
        return Position(epoch + 1, 0, 0)

    def _count(self, epoch: int, block: int) -> int:
        """Return the number of batches of a block, which is cached: a reader skips a block without planning it."""
        count = self._counts.get((epoch, block))
        return len(self._plan(epoch, block)[1].starts) if count is None else count

    def _plan(self, epoch: int, index: int) -> tuple[PairBlock, BlockPlan]:
        """Return a block with its plan, computed once, under the lock: the other readers need the same one next."""
        key = (epoch, index)
        with self._lock:
            block = self._blocks.pop(key, None)
            if block is None:
                block = self._read_block(epoch, index)
            self._blocks[key] = block
            while len(self._blocks) > _MIN_PLANS:
                self._blocks.popitem(last=False)
            if key in self._plans:
                self._plans.move_to_end(key)
                return block, self._plans[key]
            settings = self._settings
            shuffle_key = [settings.seed, epoch, index] if settings.shuffle else None
            plan = self._plan_lengths(*block.lengths_with_eos, shuffle_key)
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.clear()
            self._counts[key] = len(plan.starts)
            self._plans[key] = plan
            pairs_in_memory = sum(len(planned.order) for planned in self._plans.values())
            while len(self._plans) > _MIN_PLANS and pairs_in_memory > self.planned_pairs:
                pairs_in_memory -= len(self._plans.popitem(last=False)[1].order)
            return block, plan

    def _plan_lengths(self, source: IntArray, target: IntArray, shuffle_key: list[int] | None) -> BlockPlan:
        settings = self._settings
        return plan_block(source, target, self._buckets, settings.batch_type, settings.batch_tokens,
                          settings.sort_by_length, shuffle_key)


def _is_empty(data: BlockSource) -> bool:
    if isinstance(data, PreparedData):
        return not data.pairs  # a number in the manifest
    return not any(len(data.read_block(block)) for block in range(data.num_blocks))


def check_batch_settings(settings: BatchSettings, epochs: int | None) -> None:
    """Check the settings of batches and the number of epochs.

    Raises:
        SettingsError: a setting has an impossible value.
    """
    check_ranges(settings)
    if epochs is not None and epochs < 1:
        raise SettingsError(f"epochs={epochs}: expected at least 1, or None for no end.")


_WINDOWS = 4  # end of a key of random numbers, different from the keys of plans and of `windows`


class SampledBatches(Batches):
    """Batches of prepared data with segmentations that are sampled, and pairs that are modified, anew in each epoch.

    Args:
        data: the corpus.
        settings: size, order, window, sampling of segmentations, and modifiers.
        epochs, alignments: see `Batches`.
        ahead: whether the next window is sampled while one is read.

    Raises:
        DataError: the corpus is empty.
        SettingsError: a setting has an impossible value, or segmentations cannot be sampled for this corpus.
    """

    planned_pairs = 0

    def __init__(self, data: PreparedData, settings: StreamBatchSettings,
                 epochs: int | None = None, alignments: bool = False, ahead: bool = True) -> None:
        super().__init__(data, settings, epochs, alignments)
        # A sampled sentence is not longer than max_length, which includes EOS.
        self._windows = SampledWindows(data, settings.sampling(), settings.pair_modifiers(), settings.window,
                                       settings.seed, settings.max_length - 1)
        self.num_blocks = data.num_blocks * self._windows.per_shard
        self._pairs, self._ahead = data.pairs, ahead
        self._window_settings = settings.window_settings()
        self._background = BackgroundThread(f"drawing pairs of {data.directory}")
        self._sampled: dict[tuple[int, int], Future[PairBlock]] = {}

    @property
    def position_settings(self) -> dict[str, Any]:
        """The settings of `Batches`, and those of windows and sampling."""
        return {**super().position_settings, **self._window_settings}

    @cached_property
    def estimated_size(self) -> EpochSize:
        """The size of an epoch, estimated from the first window of the first epoch."""
        sizes = (self._size_of_block(0, index) for index in self._block_order(0))
        size = next(size for size in sizes if size.pairs)
        return size.times(self._pairs / size.pairs)

    def _block_order(self, epoch: int) -> list[int]:
        """Return the order of the windows. The windows of a shard are consecutive, so its file is read once."""
        per_shard, seed = self._windows.per_shard, self._settings.seed
        order = []
        for shard in self._shuffled(epoch, self.num_blocks // per_shard):
            windows = (permutation([seed, epoch, shard, _WINDOWS], per_shard).tolist() if self._settings.shuffle
                       else range(per_shard))
            order += [shard * per_shard + window for window in windows]
        return order

    def _read_block(self, epoch: int, index: int) -> PairBlock:
        future = self._sampled.pop((epoch, index), None) or self._sample(epoch, index)
        return future.result()

    def _read_ahead(self, epoch: int, index: int) -> None:
        following = self._following(epoch, index) if self._ahead else None
        with self._lock:
            if following is not None and following not in self._plans and following not in self._sampled:
                self._sampled = {following: self._sample(*following)}

    def _sample(self, epoch: int, index: int) -> Future[PairBlock]:
        return self._background.submit(partial(self._windows.sample, epoch, index))

    def _following(self, epoch: int, index: int) -> tuple[int, int] | None:
        order = self._block_order(epoch)
        position = order.index(index) + 1
        if position < len(order):
            return epoch, order[position]
        if self._epochs is not None and epoch + 1 >= self._epochs:
            return None
        return epoch + 1, self._block_order(epoch + 1)[0]
