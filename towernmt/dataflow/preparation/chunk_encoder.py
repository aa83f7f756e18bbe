"""Encode raw lines as filtered pairs of ids, one chunk at a time. A chunk is some thousand lines of both files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.preparation.shards import id_dtype
from towernmt.dataflow.sources.source import Pair
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.pair_filters import DROP_REASONS, REASON_CODES, PairFilter, duplicate_keys
from towernmt.dataflow.text.pharaoh_alignments import Link, link_tokens, parse_links
from towernmt.dataflow.text.text_lines import Chunk
from towernmt.dataflow.vocabulary.base import Sampling, Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary, FactorError, factors_of, split_factors


def vocabulary_id_dtype(source_vocabulary: Vocabulary, target_vocabulary: Vocabulary) -> np.dtype[Any]:
    """Return the type of the stored ids of both sides and of all factors."""
    vocabularies = source_vocabulary, target_vocabulary, *factors_of(source_vocabulary)
    return id_dtype(max(vocabulary.size for vocabulary in vocabularies))


@dataclass(frozen=True)
class EncodedChunk:
    """The pairs of a chunk that were kept, in file order, and what was dropped.

    Attributes:
        lines: number of lines of the chunk.
        line_numbers: int64 `[pairs]`, line numbers of the kept pairs, from 1.
        source_lengths: int32 `[pairs]`, in tokens without EOS.
        target_lengths: int32 `[pairs]`, in tokens without EOS.
        source_ids: uint16 or int32 `[tokens]`.
        target_ids: uint16 or int32 `[tokens]`.
        dropped: line numbers of the dropped pairs, by reason.
        source_factors: uint16 or int32 `[factors, tokens]`, or None; see `PairBlock`.
        link_counts: int32 `[pairs]`, number of alignment links; None without alignments.
        links: uint16 `[2, links]`, see `PairBlock`.
        keys: uint64 `[pairs, keys]`, equal for duplicates; None if duplicates are kept.
    """

    lines: int
    line_numbers: NDArray[np.int64]
    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]
    source_ids: NDArray[np.integer]
    target_ids: NDArray[np.integer]
    dropped: dict[str, NDArray[np.int64]]
    source_factors: NDArray[np.integer] | None = None
    link_counts: NDArray[np.int32] | None = None
    links: NDArray[np.uint16] | None = None
    keys: NDArray[np.uint64] | None = None


@dataclass(frozen=True)
class _EncodedSide:
    """Texts of one side and their ids; for `factors` and `words`, see `FactoredTexts`."""

    texts: list[str]
    ids: list[list[int]]
    factors: Sequence[list[list[int]]] = ()
    words: Sequence[list[int]] = ()


class ChunkEncoder:
    """Encodes chunks with two vocabularies and a filter.

    A source vocabulary with factors reads words followed by their factors; see
    `towernmt.dataflow.vocabulary.source_factors`.

    Attributes:
        dtype: type of the ids.
        source_vocabulary: vocabulary of the source.
    """

    def __init__(self, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, pair_filter: PairFilter
                 ) -> None:
        self.source_vocabulary = source_vocabulary
        self._source, self._target, self._filter = source_vocabulary, target_vocabulary, pair_filter
        self.dtype = vocabulary_id_dtype(source_vocabulary, target_vocabulary)

    def __call__(self, source: Chunk, target: Chunk, alignments: Chunk | None = None) -> EncodedChunk:
        texts = [[clean(line) for line in chunk.decode()] for chunk in (source, target)]
        try:
            if alignments is None:
                return self._filtered(_side(self._source, texts[0]), _side(self._target, texts[1]), source.first_line)
            source_side, target_side = (_side_with_words(vocabulary, side) for vocabulary, side in zip(
                (self._source, self._target), texts, strict=True))
        except FactorError as error:
            raise error.at(source.path, source.first_line + error.index) from None
        counts = ([len(text.split()) for text in side] for side in texts)
        return self._filtered(source_side, target_side, source.first_line, parse_links(alignments, *counts))

    def encode_pairs(self, pairs: Sequence[Pair], first_line: int, threads: int = 1) -> EncodedChunk:
        """Encode and filter pairs of raw text.

        Raises:
            FactorError: a source word lacks a factor.
        """
        source, target = (list(side) for side in zip(*pairs, strict=True))
        return self._filtered(_side(self._source, source, threads), _side(self._target, target, threads), first_line)

    def sample_pairs(self, pairs: Sequence[Pair], first_line: int, sampling: Sampling, seed: int, first: int = 0
                     ) -> EncodedChunk:
        """Encode pairs with random segmentations (see `Vocabulary.sample_batch`), and filter them.

        Args:
            pairs: the pairs, raw text.
            first_line: line number of the first pair.
            sampling: distribution of the segmentations.
            seed: seed of the draws, from 0.
            first: index of the first pair among all pairs with this seed.
        """
        source, target = (list(side) for side in zip(*pairs, strict=True))
        # Two seeds, so that a shared vocabulary segments equal sentences of the sides independently.
        if isinstance(self._source, FactoredVocabulary):
            encoded_source = _EncodedSide(source, *self._source.sample_texts(source, sampling, 2 * seed, first))
        else:
            encoded_source = _EncodedSide(source, self._source.sample_batch(source, sampling, 2 * seed, first))
        encoded_target = _EncodedSide(target, self._target.sample_batch(target, sampling, 2 * seed + 1, first))
        return self._filtered(encoded_source, encoded_target, first_line)

    def _filtered(self, source: _EncodedSide, target: _EncodedSide, first_line: int,
                  links: Sequence[Sequence[Link]] | None = None) -> EncodedChunk:
        lengths = [np.fromiter(map(len, side.ids), np.int64, len(side.ids)) for side in (source, target)]
        reasons = self._filter.reasons(*lengths)
        keys = self._filter_texts(source.texts, target.texts, reasons)
        numbers = first_line + np.arange(len(source.ids), dtype=np.int64)
        accepted = np.flatnonzero(reasons < 0)
        dropped = {name: numbers[reasons == code] for code, name in enumerate(DROP_REASONS)
                   if (reasons == code).any()}
        source_lengths, target_lengths = (side[accepted].astype(np.int32) for side in lengths)
        factors = np.stack([self._flat(ids, accepted) for ids in source.factors]) if source.factors else None
        return EncodedChunk(len(source.ids), numbers[accepted], source_lengths, target_lengths,
                            self._flat(source.ids, accepted), self._flat(target.ids, accepted), dropped, factors,
                            *_linked(source, target, links, accepted), keys)

    def _filter_texts(self, source: list[str], target: list[str], reasons: NDArray[np.int8]
                       ) -> NDArray[np.uint64] | None:
        """Write the decisions of the text filters into `reasons`; return the keys of the kept pairs if needed."""
        texts, duplicates = self._filter.texts, self._filter.duplicates
        if not texts.active and duplicates == "keep":
            return None
        pairs = []
        for index in np.flatnonzero(reasons < 0).tolist():
            pair = self._plain(clean(source[index])), clean(target[index])
            reason = texts.reason(*pair)
            if reason is None:
                pairs.append(pair)
            else:
                reasons[index] = REASON_CODES[reason]
        return None if duplicates == "keep" else duplicate_keys(pairs, duplicates)

    def _plain(self, text: str) -> str:
        factors = len(factors_of(self._source))
        return " ".join(split_factors(text, factors)[0]) if factors else text

    def _flat(self, ids: list[list[int]], pairs: NDArray[np.intp]) -> NDArray[np.integer]:
        selected: Any = ids if len(pairs) == len(ids) else [ids[i] for i in pairs.tolist()]
        return np.fromiter(chain.from_iterable(selected), self.dtype)


def _side(vocabulary: Vocabulary, texts: list[str], threads: int = 1) -> _EncodedSide:
    if isinstance(vocabulary, FactoredVocabulary):
        return _EncodedSide(texts, *vocabulary.encode_texts(texts, threads))
    return _EncodedSide(texts, vocabulary.encode_batch(texts, threads))


def _side_with_words(vocabulary: Vocabulary, texts: list[str]) -> _EncodedSide:
    if isinstance(vocabulary, FactoredVocabulary):
        return _EncodedSide(texts, *vocabulary.encode_texts(texts))
    ids, words = vocabulary.encode_with_words(texts)
    return _EncodedSide(texts, ids, words=words)


def _linked(source: _EncodedSide, target: _EncodedSide, links: Sequence[Sequence[Link]] | None, pairs: NDArray[np.intp]
            ) -> tuple[NDArray[np.int32] | None, NDArray[np.uint16] | None]:
    """Return `link_counts` and `links` of the kept pairs."""
    if links is None:
        return None, None
    pair_links = [link_tokens(links[i], source.words[i], target.words[i]) for i in pairs.tolist()]
    counts = np.array([token_links.shape[1] for token_links in pair_links], np.int32)
    return counts, np.concatenate([np.zeros((2, 0), np.uint16), *pair_links], axis=1)


def drop_repeated(chunk: EncodedChunk, repeated: NDArray[np.bool_]) -> EncodedChunk:
    """Return the chunk without the pairs that occurred before.

    Args:
        chunk: a chunk with keys.
        repeated: bool `[pairs, keys]`, whether each key occurred before.
    """
    exactly, nearly = repeated[:, 0], repeated[:, 1:].any(axis=1) & ~repeated[:, 0]
    new = ~(exactly | nearly)
    if new.all():
        return chunk
    duplicates = {"duplicate": chunk.line_numbers[exactly], "near duplicate": chunk.line_numbers[nearly]}
    dropped = chunk.dropped | {name: lines for name, lines in duplicates.items() if len(lines)}
    source, target = (np.repeat(new, lengths) for lengths in (chunk.source_lengths, chunk.target_lengths))
    factors, counts, links = chunk.source_factors, chunk.link_counts, chunk.links
    if counts is not None and links is not None:
        counts, links = counts[new], links[:, np.repeat(new, counts)]
    return replace(
        chunk, line_numbers=chunk.line_numbers[new], source_lengths=chunk.source_lengths[new],
        target_lengths=chunk.target_lengths[new], source_ids=chunk.source_ids[source],
        target_ids=chunk.target_ids[target], dropped=dropped,
        source_factors=None if factors is None else factors[:, source], link_counts=counts, links=links, keys=None)
