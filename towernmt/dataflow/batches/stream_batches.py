"""Batches from unprepared sources: windows of a mixture, each encoded, shuffled and divided into batches.

Like `Batches` for prepared shards, `read(position, start, step)` gives the same order to any number of readers. A
window is made once, in a background thread, and shared by all readers that began at the same position; the next
window is made while they read this one. A position has the cursor at which its window begins: a resumed run reads
that window again, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.batch import Batch, Position, make_batch
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.batches import check_batch_settings
from towernmt.dataflow.batches.windows import BackgroundThread, Window, WindowMaker
from towernmt.dataflow.preparation.chunk_encoder import ChunkEncoder
from towernmt.dataflow.sources.mixture import Mixture, MixtureReader
from towernmt.dataflow.sources.source import Cursor
from towernmt.dataflow.text.pair_filters import PairFilter
from towernmt.dataflow.vocabulary.base import Vocabulary


class StreamBatches:
    """The batches of a mixture, for any number of readers in any number of threads.

    Args:
        mixture: the sources.
        source_vocabulary: vocabulary of the source language.
        target_vocabulary: vocabulary of the target language.
        settings: windows, sampling, size and order.
        pair_filter: filter of the pairs.
        epochs: number of passes, counted from the first one; None for no end.
        report: called with a sentence at the end of each epoch; None to write it to the log.

    Attributes:
        position_settings: the settings that a position inside an epoch depends on, by name.

    Raises:
        SettingsError: a setting has an impossible value.
    """

    def __init__(self, mixture: Mixture, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary,
                 settings: StreamBatchSettings, pair_filter: PairFilter | None = None, epochs: int | None = None,
                 report: Callable[[str], None] | None = None) -> None:
        check_batch_settings(settings, epochs)
        sampling = settings.sampling()
        if sampling is not None:  # raises now what would otherwise be raised in a feeder
            source_vocabulary.sample_batch([""], sampling, 0)
            target_vocabulary.sample_batch([""], sampling, 0)
        pair_filter = pair_filter or PairFilter(200, 9.0)
        encoder = ChunkEncoder(source_vocabulary, target_vocabulary, pair_filter)
        self.mixture = mixture
        self.position_settings = {**stream_settings(mixture, pair_filter), **settings.position_settings(),
                                  **settings.window_settings()}
        self.epochs = epochs
        self.report = report or logging.getLogger(__name__).info
        self.maker = WindowMaker(mixture, encoder, settings)
        self.lock = threading.RLock()
        self.background = BackgroundThread(f"reading {mixture.name}")
        self._heads: weakref.WeakValueDictionary[str, _LinkedWindow] = weakref.WeakValueDictionary()

    def read(self, position: Position | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[Position, Batch]]:
        """Yield every `step`-th batch from `position` on, beginning with the `start`-th.

        See `Batches.read`. Readers of the same position that are made before one of them begins to read share
        their windows.

        Raises:
            DataError: the position lies outside these sources, or, during reading, a source cannot be read.
            ValueError: start below 0 or step below 1.
        """
        if start < 0 or step < 1:
            raise ValueError(f"read(start={start}, step={step}): expected start from 0 and step from 1")
        begin = position or Position()
        if min(begin[:3]) < 0 or (begin.cursor is None and begin[1:3] != (0, 0)):
            raise _outside(begin)
        if begin.cursor is not None:
            self.mixture.reader(begin.cursor)  # refuses a cursor of other sources
        if begin.weights is not None:
            self.mixture.restore_weights(begin.weights)
        if begin.batch:     # an earlier run has trained on a part of this window, so new weights must not change it
            self.mixture.weight_log.enter((begin.epoch, begin.block))
        with self.lock:
            key = begin.to_json()
            head = self._heads.get(key)
            if head is None:
                head = self._heads[key] = _LinkedWindow(self, begin.epoch, begin.block, begin.cursor)
        return self._read(head, begin, start, step)

    def batches_per_epoch(self) -> int:
        """Raise NotImplementedError, which tensorpack expects for data of unknown size."""
        raise NotImplementedError("The number of batches of a stream is unknown until it has been read.")

    def saved_position(self, position: str) -> str:
        """Return a position with the weights that the mixture's `set_weights` has set since its batch was read.

        Args:
            position: JSON of a position of these batches.
        """
        parsed = Position.from_json(position)
        changes = self.mixture.weight_log.since((parsed.epoch, parsed.block))
        return parsed._replace(weights=[asdict(change) for change in changes]).to_json() if changes else position

    def _read(self, node: _LinkedWindow, position: Position, skip: int, step: int
              ) -> Iterator[tuple[Position, Batch]]:
        first = position.batch
        while self.epochs is None or node.epoch < self.epochs:
            window = node.enter()
            count = len(window.plan)
            if first and first >= count:
                raise _outside(position)
            for index in range(first + skip, count, step):
                yield _after(node, window, index), make_batch(window.block, window.plan.batch_pairs(index))
            passed = count - first
            skip = (skip - passed) % step if skip < passed else skip - passed
            first, node = 0, node.following()


def stream_settings(mixture: Mixture, pair_filter: PairFilter) -> dict[str, Any]:
    """Return the settings that a position in a stream depends on, by name, except the settings of batches."""
    limits = asdict(pair_filter)
    limits |= limits.pop("texts")
    settings = {**mixture.position_settings, **limits}
    return {f"{name} in corpora.yaml": value for name, value in settings.items()}


class _LinkedWindow:
    """A window that is made when it is first needed, with a link to the next window.

    It has no link to the previous window. So a window is freed when all readers have left it.
    """

    def __init__(self, stream: StreamBatches, epoch: int, index: int, cursor: Cursor | None,
                 reader: MixtureReader | None = None, tally: _Tally | None = None) -> None:
        self.epoch, self.index = epoch, index
        self._stream, self._cursor, self._reader = stream, cursor, reader
        self._tally = tally or _Tally(complete=index == 0)
        self._future: Future[tuple[Window, MixtureReader | None]] | None = None
        self._following: _LinkedWindow | None = None
        self._weights: list[float] | None = None    # weights with which the window is made
        self._entered = self._counted = False

    def start(self) -> Future[tuple[Window, MixtureReader | None]]:
        """Begin to make the window, unless it has been started, and return its future."""
        with self._stream.lock:
            if self._future is None:
                self._weights = self._weights_now()
                make, reader, self._reader = self._stream.maker.make, self._reader, None
                self._future = self._stream.background.submit(
                    partial(make, self.epoch, self.index, self._cursor, reader, self._weights))
            return self._future

    def window(self) -> Window:
        """Return the window. Waits until it is made.

        Raises:
            DataError: a source cannot be read.
        """
        return self.start().result()[0]

    def enter(self) -> Window:
        """Return the window to a reader that begins to read it, and begin to make the next one.

        Waits until the window is made. If the weights of the mixture were set since it was begun, and no other reader
        has entered it, it is made again.

        Raises:
            DataError: a source cannot be read, or a complete epoch has no pair.
        """
        stream = self._stream
        with stream.lock:
            if not self._entered and self._weights != self._weights_now():
                self._future = None
            self._entered = True
            stream.mixture.weight_log.enter((self.epoch, self.index))
            self.start()
        window = self.window()
        with stream.lock:
            if not self._counted:
                self._counted = True
                self._tally.add(window)
            if window.over:
                self._finish_epoch(window)
            following = self.following()
            if stream.epochs is None or following.epoch < stream.epochs:
                following.start()
        return window

    def following(self) -> _LinkedWindow:
        """Return the next window. Waits until this window is made."""
        window, reader = self.start().result()
        with self._stream.lock:
            if self._following is None:
                if window.over:
                    self._following = _LinkedWindow(self._stream, self.epoch + 1, 0, None)
                else:
                    self._following = _LinkedWindow(self._stream, self.epoch, self.index + 1, window.end, reader,
                                                    self._tally)
                self._future = _done(window)    # without the reader, which the next window moves on
            return self._following

    def _weights_now(self) -> list[float] | None:
        return self._stream.mixture.weight_log.at((self.epoch, self.index))

    def _finish_epoch(self, window: Window) -> None:
        tally, stream = self._tally, self._stream
        if tally.reported:
            return
        if tally.complete and not tally.accepted:
            raise DataError(f"{stream.mixture.name}: a complete epoch has no sentence pair to train on "
                            f"({tally.describe()}). Check the sources, and max_length and max_length_ratio.")
        tally.reported = True
        sources = "; ".join(f"{source.name}: {source.pairs:,} in {source.rounds} round(s)"
                            for source in window.statistics)
        stream.report(f"Epoch {self.epoch + 1} has been read: {tally.describe()}. Pairs of the epoch: {sources}.")


class _Tally:
    """Counts of the pairs that were read in one epoch; `complete` if they began with the epoch."""

    def __init__(self, complete: bool) -> None:
        self.complete, self.accepted, self._pairs_read, self.reported = complete, 0, 0, False
        self._dropped: Counter[str] = Counter()

    def add(self, window: Window) -> None:
        self.accepted += len(window.block)
        self._pairs_read += window.read
        self._dropped.update(window.dropped)

    def describe(self) -> str:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self._dropped.items()))
        restriction = "" if self.complete else " since it was resumed"
        return f"{self._pairs_read:,} pairs read{restriction}, {sum(self._dropped.values()):,} dropped" + (
            f": {dropped}" if dropped else "")


def _done(window: Window) -> Future[tuple[Window, MixtureReader | None]]:
    future: Future[tuple[Window, MixtureReader | None]] = Future()
    future.set_result((window, None))
    return future


def _after(node: _LinkedWindow, window: Window, index: int) -> Position:
    if index + 1 < len(window.plan):
        return Position(node.epoch, node.index, index + 1, window.begin)
    if window.over:
        return Position(node.epoch + 1)
    return Position(node.epoch, node.index + 1, 0, window.end)


def _outside(position: Position) -> DataError:
    return DataError(f"The data position (epoch {position.epoch}, block {position.block}, batch {position.batch}) is "
                     "outside these sources, since they, or their window or batch settings, have changed since the "
                     "checkpoint. Restore them.")
