"""Prepared data with segmentations drawn anew, in windows: parts of shards, since drawing takes longer than reading.

A drawn segmentation is a function of (seed, epoch, window, place in the window) alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import SettingsError
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import Sampling
from towernmt.dataflow.vocabulary.subword.redrawer import Redrawer, Redrawn
from towernmt.dataflow.vocabulary.subword.spans import spans

_SOURCE, _TARGET = 2, 3  # of the keys of random numbers; 0 and 1 are the order of pairs and batches


class DrawnWindows:
    """The windows of prepared data; not for several threads at once.

    Args:
        data: the corpus.
        sampling: how far from the best segmentation.
        window: the most pairs of a window, nearly: each shard has as many windows as the others.
        seed: of the draws, from 0.
        longest: a sentence that would have more tokens keeps its stored segmentation.
    Attributes:
        per_shard: windows of each shard; window i is one of shard `i // per_shard`.
    Raises:
        SettingsError: the vocabulary has only one segmentation of a text, or what is known of each word would be lost.
    """

    def __init__(self, data: PreparedData, sampling: Sampling, window: int, seed: int, longest: int) -> None:
        if sampling.nbest != -1:
            raise SettingsError(f"data.subword_nbest={sampling.nbest} draws among the best segmentations of whole "
                                f"sentences, but {data.directory} is prepared, and its words are drawn for one by one: "
                                "leave it -1.")
        # Two streams of random numbers: with one vocabulary for both sides, equal sentences need not be cut alike.
        words = data.source_vocabulary.stored_words(sampling), data.target_vocabulary.stored_words(sampling)
        annotated = data.source_vocabulary.streams > 1 or data.has_alignments
        if annotated and not all(side.within_words for side in words):
            raise SettingsError(f"data.subword_sampling=true cannot keep the source factors or word alignments of "
                                f"{data.directory}, since its vocabulary has pieces of several words: leave it false.")
        self._data, self._seed, self._longest = data, seed, longest
        self._source, self._target = (Redrawer(side) for side in words)
        self.per_shard = max(1, -(-data.pairs // (max(data.num_blocks, 1) * window)))

    def draw(self, epoch: int, index: int) -> PairBlock:
        """Window `index`, with the segmentations of an epoch.

        Raises:
            DataError: the shard is missing, truncated, damaged or foreign; the message names it.
        """
        shard, place = divmod(index, self.per_shard)
        # Pairs lie in a shard as they lay in the text: every n-th is a sample of them all.
        block = _every(self._data.read_block(shard), place, self.per_shard)
        key = [self._seed, epoch, index]
        source = self._source.redraw(block.source_ids, block.source_offsets, [*key, _SOURCE], self._longest)
        target = self._target.redraw(block.target_ids, block.target_offsets, [*key, _TARGET], self._longest)
        drawn = PairBlock(source.ids, source.offsets, target.ids, target.offsets)
        if block.source_factors is not None:  # all pieces of a word have its factors
            drawn = replace(drawn, source_factors=block.source_factors[:, np.repeat(source.begins, source.counts)])
        return drawn if block.links is None else _linked(drawn, block, source, target)


def _every(block: PairBlock, first: int, step: int) -> PairBlock:
    """Every `step`-th pair of a block, in memory."""
    pairs = np.arange(first, len(block), step)
    source, source_offsets = _chosen(block.source_offsets, pairs)
    target, target_offsets = _chosen(block.target_offsets, pairs)
    chosen = PairBlock(block.source_ids[source], source_offsets, block.target_ids[target], target_offsets)
    if block.source_factors is not None:
        chosen = replace(chosen, source_factors=block.source_factors[:, source])
    if block.links is not None and block.link_offsets is not None:
        links, link_offsets = _chosen(block.link_offsets, pairs)
        chosen = replace(chosen, links=block.links[:, links], link_offsets=link_offsets)
    return chosen


def _chosen(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of some rows, and the offsets of these rows one after another."""
    begins = offsets[rows]
    counts = offsets[rows + 1] - begins
    return spans(begins, counts), np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _linked(drawn: PairBlock, block: PairBlock, source: Redrawn, target: Redrawn) -> PairBlock:
    """The drawn pairs with the links of `block`: all new pieces of words that were linked."""
    links, offsets = np.asarray(block.links).astype(np.int64), np.asarray(block.link_offsets)
    pairs = np.repeat(np.arange(len(block)), np.diff(offsets))  # [links]
    # Pieces of linked words are linked all with all, so the first pieces of words tell which words are.
    words = [np.searchsorted(side.begins, old) for side, old in (
        (source, block.source_offsets[pairs] + links[0]), (target, block.target_offsets[pairs] + links[1]))]
    kept = _is_first(source, block.source_offsets, links[0], pairs, words[0]) & _is_first(
        target, block.target_offsets, links[1], pairs, words[1])
    pairs, (from_words, to_words) = pairs[kept], (side[kept] for side in words)
    counts = source.counts[from_words], target.counts[to_words]
    first = [np.cumsum(side.counts)[of] - side.counts[of] - new[pairs] for side, of, new in (
        (source, from_words, drawn.source_offsets), (target, to_words, drawn.target_offsets))]  # within its sentence
    # Each source piece of a link is repeated for all its target pieces.
    repeated = np.repeat(counts[1], counts[0])
    new = np.stack([np.repeat(spans(first[0], counts[0]), repeated),
                    spans(np.repeat(first[1], counts[0]), repeated)]).astype(np.uint16)
    per_pair = np.bincount(pairs, counts[0] * counts[1], len(block)).astype(np.int64)
    return replace(drawn, links=new, link_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(per_pair)]))


def _is_first(side: Redrawn, offsets: NDArray[np.int64], pieces: NDArray[np.int64], pairs: NDArray[np.int64],
              words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool `[links]`: whether the piece of a link is the first of its word."""
    return np.append(side.begins, -1)[words] == offsets[pairs] + pieces
