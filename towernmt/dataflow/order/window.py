"""Windows: many consecutive pairs of a stream, which are encoded, filtered and planned as one block."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import TowerNMTError
from towernmt.dataflow.order.batch_settings import StreamBatchSettings
from towernmt.dataflow.order.block_plan import BlockPlan, plan_block
from towernmt.dataflow.order.buckets import define_buckets
from towernmt.dataflow.prepare.chunk_encoder import ChunkEncoder, EncodedChunk
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.sources.mixture import Mixture, MixtureReader, SourceStatistics
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.vocabulary.factored import FactorError

_SLICE = 8192  # pairs that are text, and lists of ids, at a time
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Window:
    """One window, ready for `make_batch`.

    Attributes:
        begin: the mixture's cursor before its first pair.
        end: the cursor after its last pair.
        over: whether the epoch ends here.
        block: the pairs that were kept.
        plan: their batches.
        read: pairs that were read.
        dropped: reason to number of pairs that were dropped for it.
        statistics: of each source, in the epoch up to here.
    """

    begin: Cursor
    end: Cursor
    over: bool
    block: PairBlock
    plan: BlockPlan
    read: int
    dropped: Counter[str] = field(default_factory=Counter)
    statistics: Sequence[SourceStatistics] = ()


class WindowMaker:
    """Makes windows. A window depends on the settings, the epoch, its number and its pairs alone.

    Args:
        mixture: the sources.
        encoder: vocabularies and filter.
        settings: window, sampling and batches.
    """

    def __init__(self, mixture: Mixture, encoder: ChunkEncoder, settings: StreamBatchSettings) -> None:
        self._mixture, self._encoder, self._settings = mixture, encoder, settings
        self._sampling = settings.sampling()

    def make(self, epoch: int, index: int, cursor: Cursor | None, reader: MixtureReader | None
             ) -> tuple[Window, MixtureReader | None]:
        """Window `index` of an epoch, and a reader at its end, if there is one.

        Args:
            epoch, index: numbers from 0.
            cursor: where the window begins; None for the beginning of the epoch.
            reader: one that stands there already, or None.
        Raises:
            DataError: a source cannot be read.
        """
        if reader is None:
            reader = self._mixture.reader(self._mixture.begin(epoch) if cursor is None else cursor)
        begin = reader.cursor()
        chunks, dropped = self._encode(reader, epoch, index)
        end, statistics = reader.cursor(), reader.statistics()
        going_on: MixtureReader | None = reader
        try:
            over = reader.at_end()
        except TowerNMTError:
            # The next window opens the sources again at this place, and raises the error if it is still there.
            over, going_on = False, None
        block = _joined(chunks)
        settings = self._settings
        source, target = block.source_lengths + 1, block.target_lengths + 1  # with EOS
        ratio = float(np.mean(source / target)) if len(block) else 1.0
        plan = plan_block(source, target, define_buckets(settings.bucket_width, settings.max_length, ratio),
                          settings.batch_type, settings.batch_tokens, settings.sort_by_length,
                          [settings.seed, epoch, index] if settings.shuffle else None)
        read = sum(chunk.lines for chunk in chunks)
        return Window(begin, end, over, block, plan, read, dropped, statistics), going_on

    def _encode(self, reader: MixtureReader, epoch: int, index: int) -> tuple[list[EncodedChunk], Counter[str]]:
        chunks: list[EncodedChunk] = []
        dropped: Counter[str] = Counter()
        left = self._settings.window
        number = sum(one.pairs for one in reader.statistics())  # of the next pair in this epoch
        while left > 0 and (pairs := reader.take(min(left, _SLICE))):
            left -= len(pairs)
            try:
                chunk = self._encode_slice(pairs, epoch, number)
            except FactorError as error:
                raise error.at(f"{self._mixture.name}, window {index + 1} of epoch {epoch + 1},",
                               sum(one.lines for one in chunks) + error.index + 1) from None
            chunks.append(chunk)
            number += len(pairs)
            dropped.update({reason: len(lines) for reason, lines in chunk.dropped.items()})
        return chunks, dropped

    def _encode_slice(self, pairs: list[Pair], epoch: int, number: int) -> EncodedChunk:
        """If segmentations are drawn, a draw depends on (seed, epoch, number of the pair in the epoch) alone."""
        if self._sampling is None:
            return self._encoder.encode_pairs(pairs, 1, _THREADS)
        seed = int(np.random.SeedSequence([self._settings.seed, epoch]).generate_state(1, np.uint64)[0])
        return self._encoder.sample_pairs(pairs, 1, self._sampling, seed, number)


def _joined(chunks: list[EncodedChunk]) -> PairBlock:
    return PairBlock(_concatenated([chunk.source_ids for chunk in chunks]),
                     _offsets([chunk.source_lengths for chunk in chunks]),
                     _concatenated([chunk.target_ids for chunk in chunks]),
                     _offsets([chunk.target_lengths for chunk in chunks]), _joined_factors(chunks))


def _joined_factors(chunks: list[EncodedChunk]) -> NDArray[Any] | None:
    factors = [chunk.source_factors for chunk in chunks if chunk.source_factors is not None]
    return np.concatenate(factors, axis=1) if factors else None


def _concatenated(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _offsets(lengths: list[NDArray[np.int32]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(_concatenated(lengths), dtype=np.int64)])
