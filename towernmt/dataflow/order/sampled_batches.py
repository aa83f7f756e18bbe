"""The batches of prepared data whose segmentations are drawn anew in each epoch.

A block is a window here, a part of a shard. The next one is drawn in the background while this one is read.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import cached_property, partial

from towernmt.dataflow.order.background_thread import BackgroundThread
from towernmt.dataflow.order.batch_settings import StreamBatchSettings
from towernmt.dataflow.order.batches import Batches
from towernmt.dataflow.order.block_plan import permutation
from towernmt.dataflow.order.epoch_size import EpochSize
from towernmt.dataflow.prepared.drawn_windows import DrawnWindows
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import Sampling

_WINDOWS = 4  # of the keys of random numbers: neither those of plans nor those of `drawn_windows`


class SampledBatches(Batches):
    """See `Batches`.

    Args:
        data: the corpus.
        settings: sizes, order and window.
        sampling: how far from the best segmentation.
        epochs, alignments: see `Batches`.
        ahead: whether the next window is drawn while one is read.
    Raises:
        DataError: the corpus is empty.
        SettingsError: a setting that cannot work, or segmentations cannot be drawn for these data.
    """

    planned_pairs = 0

    def __init__(self, data: PreparedData, settings: StreamBatchSettings, sampling: Sampling,
                 epochs: int | None = None, alignments: bool = False, ahead: bool = True) -> None:
        super().__init__(data, settings, epochs, alignments)
        # A sentence is not drawn beyond max_length, which counts EOS.
        self._windows = DrawnWindows(data, sampling, settings.window, settings.seed, settings.max_length - 1)
        self.num_blocks = data.num_blocks * self._windows.per_shard
        self._pairs, self._ahead = data.pairs, ahead
        self._background = BackgroundThread(f"drawing segmentations of {data.directory}")
        self._drawn: dict[tuple[int, int], Future[PairBlock]] = {}

    @cached_property
    def estimated_size(self) -> EpochSize:
        """What an epoch holds, estimated from the first window of the first epoch."""
        sizes = (self._size_of_block(0, index) for index in self._block_order(0))
        size = next(size for size in sizes if size.pairs)
        return size.times(self._pairs / size.pairs)

    def _block_order(self, epoch: int) -> list[int]:
        """The windows of a shard follow each other: its file is read once."""
        per_shard, seed = self._windows.per_shard, self._settings.seed
        order = []
        for shard in self._shuffled(epoch, self.num_blocks // per_shard):
            places = (permutation([seed, epoch, shard, _WINDOWS], per_shard).tolist() if self._settings.shuffle
                      else range(per_shard))
            order += [shard * per_shard + place for place in places]
        return order

    def _read_block(self, epoch: int, index: int) -> PairBlock:
        future = self._drawn.pop((epoch, index), None) or self._draw(epoch, index)
        return future.result()

    def _read_ahead(self, epoch: int, index: int) -> None:
        following = self._following(epoch, index) if self._ahead else None
        with self._lock:
            if following is not None and following not in self._plans and following not in self._drawn:
                self._drawn = {following: self._draw(*following)}

    def _draw(self, epoch: int, index: int) -> Future[PairBlock]:
        return self._background.submit(partial(self._windows.draw, epoch, index))

    def _following(self, epoch: int, index: int) -> tuple[int, int] | None:
        order = self._block_order(epoch)
        place = order.index(index) + 1
        if place < len(order):
            return epoch, order[place]
        if self._epochs is not None and epoch + 1 >= self._epochs:
            return None
        return epoch + 1, self._block_order(epoch + 1)[0]
