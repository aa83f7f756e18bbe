"""Batches straight from unprepared sources: windows of a mixture, each encoded, shuffled and cut into batches.

As `Batches` does for prepared shards, `read(position, start, step)` gives the same order to any number of readers.
A window is made once, in a thread in the background, and shared by all readers that began at the same position; the
next one is made while they read this one. A position holds the cursor at which its window
begins: a resumed run reads that window again, and no more.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from towernmt.core.errors import DataError
from towernmt.dataflow.order.background_thread import BackgroundThread
from towernmt.dataflow.order.batch import Batch, make_batch
from towernmt.dataflow.order.batch_settings import StreamBatchSettings
from towernmt.dataflow.order.batches import check_batch_settings
from towernmt.dataflow.order.position import Position
from towernmt.dataflow.order.window import Window, WindowMaker
from towernmt.dataflow.prepare.chunk_encoder import ChunkEncoder
from towernmt.dataflow.sources.mixture import Mixture, MixtureReader
from towernmt.dataflow.sources.source import Cursor
from towernmt.dataflow.text.filters.pair_filter import PairFilter
from towernmt.dataflow.vocabulary.base import Vocabulary


class StreamBatches:
    """The batches of a mixture, for any number of readers in any number of threads.

    Args:
        mixture: the sources.
        source_vocabulary, target_vocabulary: for the text of both sides.
        settings: windows, sampling, sizes and order.
        pair_filter: which pairs are kept.
        epochs: how many passes there are, counted from the very first; None for no end.
        report: takes a sentence on each epoch that was read; None: the log.
    Raises:
        SettingsError: a setting that cannot work.
    """

    def __init__(self, mixture: Mixture, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                 settings: StreamBatchSettings, pair_filter: PairFilter | None = None, epochs: int | None = None,
                 report: Callable[[str], None] | None = None) -> None:
        check_batch_settings(settings, epochs)
        sampling = settings.sampling()
        if sampling is not None:  # raises now what would otherwise be raised in a feeder
            source_vocabulary.sample_batch([""], sampling, 0)
            target_vocabulary.sample_batch([""], sampling, 0)
        encoder = ChunkEncoder(source_vocabulary, target_vocabulary, pair_filter or PairFilter(200, 9.0))
        self.mixture = mixture
        self.epochs = epochs
        self.report = report or logging.getLogger(__name__).info
        self.maker = WindowMaker(mixture, encoder, settings)
        self.lock = threading.RLock()
        self.background = BackgroundThread(f"reading {mixture.name}")
        self._heads: weakref.WeakValueDictionary[str, _Node] = weakref.WeakValueDictionary()

    def read(self, position: Position | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[Position, Batch]]:
        """Yield every `step`-th batch from `position` on, beginning with the `start`-th.

        See `Batches.read`. Readers of the same position that are made before one of them begins to read share
        their windows.

        Raises:
            DataError: the position lies outside these sources, or (as it is read) a source cannot be read.
            ValueError: start below 0 or step below 1.
        """
        if start < 0 or step < 1:
            raise ValueError(f"read(start={start}, step={step}): expected start from 0 and step from 1")
        begin = position or Position()
        if min(begin[:3]) < 0 or (begin.cursor is None and begin[1:3] != (0, 0)):
            raise _outside(begin)
        if begin.cursor is not None:
            self.mixture.reader(begin.cursor)  # refuses a cursor of other sources
        with self.lock:
            key = begin.to_json()
            head = self._heads.get(key)
            if head is None:
                head = self._heads[key] = _Node(self, begin.epoch, begin.block, begin.cursor)
        return self._read(head, begin, start, step)

    def batches_per_epoch(self) -> int:
        """Not known before an epoch was read. tensorpack expects NotImplementedError then."""
        raise NotImplementedError("The number of batches of a stream is not known before it was read.")

    def _read(self, node: _Node, position: Position, skip: int, step: int) -> Iterator[tuple[Position, Batch]]:
        first = position.batch
        while self.epochs is None or node.epoch < self.epochs:
            window = node.window()
            following = node.following()
            count = len(window.plan)
            if first and first >= count:
                raise _outside(position)
            for index in range(first + skip, count, step):
                yield _after(node, window, index), make_batch(window.block, window.plan.pairs_of(index))
            passed = count - first
            skip = (skip - passed) % step if skip < passed else skip - passed
            first, node = 0, following


class _Node:
    """One window, made when it is first needed, and a link to the next.

    A window links to the next one, never to the one before. So a window is freed when all readers have left it.
    """

    def __init__(self, stream: StreamBatches, epoch: int, index: int, cursor: Cursor | None,
                 reader: MixtureReader | None = None, tally: _Tally | None = None) -> None:
        self.epoch, self.index = epoch, index
        self._stream, self._cursor, self._reader = stream, cursor, reader
        self._tally = tally or _Tally(whole=index == 0)
        self._future: Future[Window] | None = None
        self._following: _Node | None = None

    def start(self) -> Future[Window]:
        """Begin to make the window, unless that has begun."""
        with self._stream.lock:
            if self._future is None:
                self._future = self._stream.background.submit(self._make)
            return self._future

    def window(self) -> Window:
        """The window; waits until it is made.

        Raises:
            DataError: a source cannot be read, or a whole epoch held no pair.
        """
        return self.start().result()

    def following(self) -> _Node:
        """The next window; begins to make it. Waits until this window is made."""
        window = self.window()
        with self._stream.lock:
            if self._following is None:
                if window.over:
                    self._following = _Node(self._stream, self.epoch + 1, 0, None)
                else:
                    self._following = _Node(self._stream, self.epoch, self.index + 1, window.end, self._reader,
                                            self._tally)
                self._reader = None
                if self._stream.epochs is None or self._following.epoch < self._stream.epochs:
                    self._following.start()
            return self._following

    def _make(self) -> Window:
        window, reader = self._stream.maker.make(self.epoch, self.index, self._cursor, self._reader)
        self._reader = None if window.over else reader
        self._tally.add(window)
        if window.over:
            self._finish_epoch(window)
        return window

    def _finish_epoch(self, window: Window) -> None:
        tally, stream = self._tally, self._stream
        if tally.whole and not tally.kept:
            raise DataError(f"{stream.mixture.name}: a whole epoch holds no sentence pair to train on "
                            f"({tally.in_words()}). Check the sources, and max_length and max_length_ratio.")
        sources = "; ".join(f"{one.name}: {one.pairs:,} in {one.rounds} round(s)" for one in window.statistics)
        stream.report(f"Epoch {self.epoch + 1} was read to its end: {tally.in_words()}. Pairs of the epoch: {sources}.")


class _Tally:
    """Counts of what was read of one epoch; `whole`: from its beginning."""

    def __init__(self, whole: bool) -> None:
        self.whole, self.kept, self._read = whole, 0, 0
        self._dropped: Counter[str] = Counter()

    def add(self, window: Window) -> None:
        self.kept += len(window.block)
        self._read += window.read
        self._dropped.update(window.dropped)

    def in_words(self) -> str:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self._dropped.items()))
        since = "" if self.whole else " since it was resumed"
        return f"{self._read:,} pairs read{since}, {sum(self._dropped.values()):,} dropped" + (
            f": {dropped}" if dropped else "")


def _after(node: _Node, window: Window, index: int) -> Position:
    if index + 1 < len(window.plan):
        return Position(node.epoch, node.index, index + 1, window.begin)
    if window.over:
        return Position(node.epoch + 1)
    return Position(node.epoch, node.index + 1, 0, window.end)


def _outside(position: Position) -> DataError:
    return DataError(f"The data position (epoch {position.epoch}, block {position.block}, batch {position.batch}) lies "
                     "outside these sources: they, or their window or batch settings, have changed since the "
                     "checkpoint; restore them.")
