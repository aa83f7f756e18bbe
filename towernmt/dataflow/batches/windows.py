"""Windows: blocks of many consecutive pairs, and the thread that makes them in the background.

A window of a stream is encoded, filtered and planned as one block. A window of prepared data with sampled
segmentations is a range of a shard, since sampling takes longer than reading. A sampled segmentation is a function of
(seed, epoch, window, index in the window) alone.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import SettingsError, TowerNMTError
from towernmt.core.machine import processors
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.block_plan import BlockPlan, define_buckets, plan_block
from towernmt.dataflow.preparation.chunk_encoder import ChunkEncoder, EncodedChunk
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.preparation.shards import PairBlock, every_pair, offsets_of_lengths
from towernmt.dataflow.sources.mixture import Mixture, MixtureReader, SourceStatistics
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.text.modifiers import Modifiers
from towernmt.dataflow.vocabulary.base import UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.resegmentation import Resegmented, Resegmenter
from towernmt.dataflow.vocabulary.sentencepiece_model import spans
from towernmt.dataflow.vocabulary.source_factors import FactorError

_Ids = Sequence[int] | NDArray[np.integer]
_SLICE = 8192  # pairs that are held in memory as text and as lists of ids
_MOST_THREADS = 4


@dataclass(frozen=True)
class Window:
    """One window, ready for `make_batch`.

    Attributes:
        begin: the mixture's cursor before the first pair.
        end: the cursor after the last pair.
        over: whether the epoch ends with this window.
        block: the pairs that passed the filter.
        plan: the batches of the block.
        read: number of pairs that were read.
        dropped: number of dropped pairs by reason.
        statistics: of each source, from the beginning of the epoch to the end of this window.
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
    """A maker of windows. A window depends only on the settings, the epoch, its index and its pairs.

    Args:
        mixture: the sources.
        encoder: vocabularies and filter.
        settings: windows, sampling and batches.
    """

    def __init__(self, mixture: Mixture, encoder: ChunkEncoder, settings: StreamBatchSettings) -> None:
        self._mixture, self._encoder, self._settings = mixture, encoder, settings
        self._sampling, self._modifiers = settings.sampling(), settings.pair_modifiers()
        if self._modifiers is not None:
            refuse_factors(encoder.source_vocabulary, mixture.name)

    def make(self, epoch: int, index: int, cursor: Cursor | None, reader: MixtureReader | None,
             weights: Sequence[float] | None = None) -> tuple[Window, MixtureReader | None]:
        """Make a window, and return it with a reader at its end, or None if that reader is not usable.

        Args:
            epoch: index of the epoch, from 0.
            index: index of the window in the epoch, from 0.
            cursor: beginning of the window; None for the beginning of the epoch.
            reader: a reader at the cursor, or None to open the sources.
            weights: weights of the sources from this window on; None for the weights in effect.

        Raises:
            DataError: a source cannot be read.
        """
        if reader is None:
            reader = self._mixture.reader(self._mixture.begin(epoch) if cursor is None else cursor)
        begin = reader.cursor()
        if weights is not None and weights != [state["weight"] for state in begin["sources"]]:
            # A new reader, since the old one may have read a pair ahead with the old weights.
            reader = self._mixture.reader(begin, weights)
            begin = reader.cursor()
        chunks, dropped = self._encode(reader, epoch, index)
        end = reader.cursor()
        next_reader: MixtureReader | None = reader
        try:
            over = reader.at_end()
        except TowerNMTError:
            # The next window opens the sources again at this position, and raises the error if it persists.
            over, next_reader = False, None
        block = _join_chunks(chunks)
        settings = self._settings
        source, target = block.lengths_with_eos
        ratio = float(np.mean(source / target)) if len(block) else 1.0
        plan = plan_block(source, target, define_buckets(settings.bucket_width, settings.max_length, ratio),
                          settings.batch_type, settings.batch_tokens, settings.sort_by_length,
                          [settings.seed, epoch, index] if settings.shuffle else None)
        read = sum(chunk.lines for chunk in chunks)
        return Window(begin, end, over, block, plan, read, dropped, reader.statistics()), next_reader

    def _encode(self, reader: MixtureReader, epoch: int, index: int) -> tuple[list[EncodedChunk], Counter[str]]:
        chunks: list[EncodedChunk] = []
        dropped: Counter[str] = Counter()
        remaining = self._settings.window
        number = sum(source.pairs for source in reader.statistics())  # index of the next pair in this epoch
        while remaining > 0 and (pairs := reader.take(min(remaining, _SLICE))):
            remaining -= len(pairs)
            try:
                chunk = self._encode_slice(pairs, epoch, number)
            except FactorError as error:
                raise error.at(f"{self._mixture.name}, window {index + 1} of epoch {epoch + 1},",
                               sum(encoded.lines for encoded in chunks) + error.index + 1) from None
            chunks.append(chunk)
            number += len(pairs)
            dropped.update({reason: len(lines) for reason, lines in chunk.dropped.items()})
        return chunks, dropped

    def _encode_slice(self, pairs: list[Pair], epoch: int, number: int) -> EncodedChunk:
        """Encode pairs, and modify some of those that pass the filter.

        Modifications and sampled segmentations depend only on (seed, epoch, number of the pair in the epoch).
        """
        chunk = self._encode_pairs(pairs, epoch, number)
        if self._modifiers is None:
            return chunk
        key = [self._settings.seed, epoch, number, _MODIFIED]
        kept = (chunk.line_numbers - 1).tolist()
        row_of_index = {index: row for row, index in enumerate(kept)}
        # Pairs that are not modified are empty here, which takes no time, and keeps the indices of the others.
        modified = [Pair("", "")] * len(pairs)
        for index, names in self._modifiers.draw(len(pairs), key):
            if index in row_of_index:
                following = (pairs[kept[row]] for row in range(row_of_index[index] + 1, len(kept)))
                modified[index] = Pair(*self._modifiers.modify(pairs[index], following, names, [*key, index]))
        # A pair stays unmodified if a filter refuses its modification, for example since it is too long, or if the
        # vocabulary lacks a word of it.
        changed = self._encode_pairs(modified, epoch, number)
        usable = np.flatnonzero(~_have_unknown(changed))
        rows = [row_of_index[index] for index in (changed.line_numbers[usable] - 1).tolist()]
        block, new = _join_chunks([chunk]), _join_chunks([changed])
        block = _with_pairs(block, rows, [
            [ids[offsets[row]:offsets[row + 1]] for row in usable.tolist()]
            for ids, offsets in ((new.source_ids, new.source_offsets), (new.target_ids, new.target_offsets))])
        return replace(chunk, source_ids=block.source_ids, source_lengths=block.source_lengths.astype(np.int32),
                       target_ids=block.target_ids, target_lengths=block.target_lengths.astype(np.int32))

    def _encode_pairs(self, pairs: list[Pair], epoch: int, number: int) -> EncodedChunk:
        if self._sampling is None:
            return self._encoder.encode_pairs(pairs, 1, min(_MOST_THREADS, processors()))
        seed = int(np.random.SeedSequence([self._settings.seed, epoch]).generate_state(1, np.uint64)[0])
        return self._encoder.sample_pairs(pairs, 1, self._sampling, seed, number)


def _have_unknown(chunk: EncodedChunk) -> NDArray[np.bool_]:
    """Return bool `[pairs]`: whether the source or the target of each kept pair has an unknown word."""
    has_unknown = np.zeros(len(chunk.line_numbers), bool)
    for ids, lengths in ((chunk.source_ids, chunk.source_lengths), (chunk.target_ids, chunk.target_lengths)):
        has_unknown[np.repeat(np.arange(len(lengths)), lengths)[ids == UNK]] = True
    return has_unknown


def _join_chunks(chunks: list[EncodedChunk]) -> PairBlock:
    factors = [chunk.source_factors for chunk in chunks if chunk.source_factors is not None]
    return PairBlock(_concatenate([chunk.source_ids for chunk in chunks]),
                     offsets_of_lengths(_concatenate([chunk.source_lengths for chunk in chunks])),
                     _concatenate([chunk.target_ids for chunk in chunks]),
                     offsets_of_lengths(_concatenate([chunk.target_lengths for chunk in chunks])),
                     np.concatenate(factors, axis=1) if factors else None)


def _concatenate(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)


# Ends of the keys of random numbers; 0 and 1 are for the order of pairs and batches, and 4 for that of windows.
_SOURCE, _TARGET, _MODIFIED = 2, 3, 5


def refuse_factors(vocabulary: Vocabulary, name: str) -> None:
    """Refuse modifiers of pairs whose source words have factors, which modified words would lack.

    Raises:
        SettingsError: the vocabulary has source factors.
    """
    if vocabulary.streams > 1:
        raise SettingsError(f"data.modifiers cannot change the source factors of {name}: leave them out.")


class SampledWindows:
    """Windows of prepared data with sampled segmentations or modified pairs. Not for several threads at once.

    Args:
        data: the corpus.
        sampling: strength of the sampling; None for the stored segmentations.
        modifiers: changes of the pairs; None for none.
        window: approximate maximum number of pairs of a window; all shards have the same number of windows.
        seed: seed of the samples, from 0.
        longest: maximum number of tokens. A sentence that would have more keeps its stored segmentation.

    Attributes:
        per_shard: number of windows of each shard; window i belongs to shard `i // per_shard`.

    Raises:
        SettingsError: the vocabulary has only one segmentation of a text, or source factors or word alignments would
            be lost.
    """

    def __init__(self, data: PreparedData, sampling: Sampling | None, modifiers: Modifiers | None, window: int,
                 seed: int, longest: int) -> None:
        self._data, self._modifiers, self._seed, self._longest = data, modifiers, seed, longest
        self.per_shard = max(1, -(-data.pairs // (max(data.num_blocks, 1) * window)))
        if modifiers is not None:
            refuse_factors(data.source_vocabulary, str(data.directory))
        self._resegmenters = None if sampling is None else self._make_resegmenters(sampling)

    def _make_resegmenters(self, sampling: Sampling) -> tuple[Resegmenter, Resegmenter]:
        """Return the samplers of both sides."""
        data = self._data
        if sampling.nbest != -1:
            raise SettingsError(f"data.subword_nbest={sampling.nbest} samples among the best segmentations of "
                                f"sentences, but in prepared data such as {data.directory} each word is sampled "
                                "separately. Set it to -1.")
        # Separate random numbers for both sides, so that equal sentences get different samples.
        words = data.source_vocabulary.stored_words(sampling), data.target_vocabulary.stored_words(sampling)
        annotated = data.source_vocabulary.streams > 1 or data.has_alignments
        if annotated and not all(side.within_words for side in words):
            raise SettingsError(f"data.subword_sampling=true cannot keep the source factors or word alignments of "
                                f"{data.directory}, since its vocabulary has subwords that span several words. Set it "
                                "to false.")
        return Resegmenter(words[0]), Resegmenter(words[1])

    def sample(self, epoch: int, index: int) -> PairBlock:
        """Return window `index` with the segmentations of an epoch.

        Raises:
            DataError: the shard is missing, truncated, damaged or foreign; the message names it.
        """
        shard, first = divmod(index, self.per_shard)
        # The pairs of a shard have the order of the text, so every n-th pair gives a representative sample.
        block = every_pair(self._data.read_block(shard), first, self.per_shard)
        key = [self._seed, epoch, index]
        if self._modifiers is not None:
            block = self._modified(block, self._modifiers, key)
        if self._resegmenters is None:
            return block
        of_source, of_target = self._resegmenters
        source = of_source.resegment(block.source_ids, block.source_offsets, [*key, _SOURCE], self._longest)
        target = of_target.resegment(block.target_ids, block.target_offsets, [*key, _TARGET], self._longest)
        sampled = PairBlock(source.ids, source.offsets, target.ids, target.offsets)
        if block.source_factors is not None:  # all subwords of a word have its factors
            words = np.repeat(source.begins, source.counts)
            sampled = replace(sampled, source_factors=np.take(block.source_factors, words, axis=1))
        return sampled if block.links is None else _add_links(sampled, block, source, target)

    def _modified(self, block: PairBlock, modifiers: Modifiers, key: list[int]) -> PairBlock:
        """Return the block with modified pairs; a pair stays if it has or would have unknown words, or be too long."""
        vocabularies = self._data.source_vocabulary, self._data.target_vocabulary

        def text(index: int) -> tuple[str, str] | None:
            ids = [side[slice(*offsets[index:index + 2])] for side, offsets in (
                (block.source_ids, block.source_offsets), (block.target_ids, block.target_offsets))]
            if any((side == UNK).any() for side in ids):
                return None
            source, target = (vocabulary.decode(side.tolist()) for vocabulary, side in zip(
                vocabularies, ids, strict=True))
            return source, target

        indices, pairs = [], []
        for index, names in modifiers.draw(len(block), [*key, _MODIFIED]):
            pair = text(index)
            if pair is not None:
                following = filter(None, map(text, range(index + 1, len(block))))
                indices.append(index)
                pairs.append(modifiers.modify(pair, following, names, [*key, _MODIFIED, index]))
        sides = [vocabulary.encode_batch([pair[side] for pair in pairs])
                 for side, vocabulary in enumerate(vocabularies)] if pairs else [[], []]
        fitting = [number for number in range(len(pairs)) if all(
            0 < len(side[number]) <= self._longest and UNK not in side[number] for side in sides)]
        return _with_pairs(block, [indices[number] for number in fitting],
                           [[side[number] for number in fitting] for side in sides])


def _with_pairs(block: PairBlock, indices: Sequence[int], sides: Sequence[Sequence[_Ids]]) -> PairBlock:
    """Return the block with other pairs at some indices, in ascending order; these pairs lose their links.

    Args:
        block: the pairs, without factors.
        indices: indices of the pairs to replace.
        sides: ids of the sources and of the targets of the new pairs.
    """
    arrays = []
    for ids, offsets, new_ids in ((block.source_ids, block.source_offsets, sides[0]),
                                  (block.target_ids, block.target_offsets, sides[1])):
        segments, copied = [], 0
        for index, replacement in zip(indices, new_ids, strict=True):
            segments += [ids[offsets[copied]:offsets[index]], np.array(replacement, ids.dtype)]
            copied = index + 1
        lengths = np.diff(offsets)
        lengths[indices] = [len(replacement) for replacement in new_ids]
        arrays += [np.concatenate([*segments, ids[offsets[copied]:]]), offsets_of_lengths(lengths)]
    changed = PairBlock(*arrays)
    if block.links is None or block.link_offsets is None:
        return changed
    counts = np.diff(block.link_offsets)
    unchanged = np.ones(len(block), bool)
    unchanged[indices] = False
    return replace(changed, links=block.links[:, np.repeat(unchanged, counts)],
                   link_offsets=offsets_of_lengths(counts * unchanged))


def _add_links(sampled: PairBlock, block: PairBlock, source: Resegmented, target: Resegmented) -> PairBlock:
    """Return the sampled pairs with links between all new subwords of the words that are linked in `block`."""
    links, offsets = np.asarray(block.links).astype(np.int64), np.asarray(block.link_offsets)
    pairs = np.repeat(np.arange(len(block)), np.diff(offsets))  # [links]
    # Words are linked if any of their subwords are: all of them in a file of alignments, some of them if learned.
    words = [np.searchsorted(side.begins, subwords, side="right") - 1 for side, subwords in (
        (source, block.source_offsets[pairs] + links[0]), (target, block.target_offsets[pairs] + links[1]))]
    _, distinct = np.unique(words[0] * (len(target.begins) + 1) + words[1], return_index=True)
    pairs, (from_words, to_words) = pairs[distinct], (side[distinct] for side in words)
    counts = source.counts[from_words], target.counts[to_words]
    # The index of the first subword of each linked word in its sentence.
    first_subwords = [
        np.cumsum(side.counts)[word] - side.counts[word] - new_offsets[pairs] for side, word, new_offsets in (
            (source, from_words, sampled.source_offsets), (target, to_words, sampled.target_offsets))]
    # Each source subword of a link is repeated for all its target subwords.
    repeated = np.repeat(counts[1], counts[0])
    new_links = np.stack([np.repeat(spans(first_subwords[0], counts[0]), repeated),
                          spans(np.repeat(first_subwords[1], counts[0]), repeated)]).astype(np.uint16)
    per_pair = np.bincount(pairs, counts[0] * counts[1], len(block)).astype(np.int64)
    return replace(sampled, links=new_links, link_offsets=offsets_of_lengths(per_pair))


T = TypeVar("T")
_Job = tuple[Callable[[], Any], "Future[Any]"]


class BackgroundThread:
    """A thread that runs submitted jobs in order.

    The thread is a daemon, unlike those of `ThreadPoolExecutor`, so that a source that does not answer cannot keep the
    program from ending. It starts with the first job and ends with the object.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in the thread. The future gets its result or its exception."""
        future: Future[T] = Future()
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
                weakref.finalize(self, self._jobs.put, None)
        self._jobs.put((work, future))
        return future


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        work, future = job
        try:
            future.set_result(work())
        except BaseException as error:
            # The reader of the future gets the exception, and this thread continues.
            future.set_exception(error)
        del job, work, future  # otherwise the thread would keep the last result in memory while it waits
