"""The words of SentencePiece pieces, in a text and in stored ids, and samples of segmentations.

SentencePiece can sample segmentations itself, but it seeds its generator differently in each process; here a sample
depends on the seed alone. The library only normalises the text and, for a sample among the n best segmentations, finds
these.
"""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import Sampling, WordSampler
from towernmt.dataflow.vocabulary.batch_sampling import BatchBpeDropout, BatchUnigramSampler
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE, PieceModel
from towernmt.dataflow.vocabulary.subword_sampling import BpeDropout, UnigramSampler, uniform_numbers

_BYTE = re.compile("<0x([0-9A-F]{2})>")


class PieceWords:
    """A finder of the word that each piece belongs to, by the space marks in the pieces.

    The marks do not show all words if a piece is unknown, if the text itself contains the mark, or if pieces end with
    the mark or span several words. Then the characters of the pieces are counted.

    Args:
        pieces: the pieces of the model, by id of the model.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._starts = np.array([piece.startswith(SPACE) for piece in pieces], np.int64)
        self._plain = np.array([SPACE not in piece[1:] for piece in pieces])

    def word_indices(self, texts: Sequence[str], encoded: Sequence[Sequence[int]],
                     piece_names: Callable[[], list[list[str]]]) -> list[list[int]]:
        """Return the index of each piece's word, from 0. A piece that spans several words belongs to the first.

        Args:
            texts: cleaned texts.
            encoded: ids of the model for each text.
            piece_names: returns the pieces of each text; called only if the ids do not suffice.
        """
        words: list[list[int]] = []
        pieces: list[list[str]] | None = None
        for index, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
            indices = None if SPACE in text else self._by_marks(np.array(ids, np.int64), text.count(" ") + 1)
            if indices is None:
                pieces = piece_names() if pieces is None else pieces
                indices = _by_characters(text, pieces[index])
            words.append(indices)
        return words

    def _by_marks(self, ids: NDArray[np.int64], count: int) -> list[int] | None:
        """Return the words by the space marks, or None if the marks do not show `count` words."""
        if not len(ids):
            return []
        words = np.cumsum(self._starts[ids]) - 1
        if words[0] != 0 or words[-1] != count - 1 or not self._plain[ids].all():
            return None
        indices: list[int] = words.tolist()
        return indices


def _by_characters(text: str, pieces: Sequence[str]) -> list[int]:
    """Return the word of the character at which each piece begins. Space marks and spaces are ignored.

    A model that normalises text may change the number of characters. Then the space marks are counted instead, and
    surplus pieces belong to the last word.
    """
    split = text.split()
    owners = [word for word, characters in enumerate(split) for c in characters if c != SPACE]
    sizes = [_characters(piece) for piece in pieces]
    if sum(sizes) == len(owners):
        begins = np.cumsum([0, *sizes])[:-1].tolist()
        # A single mark at the end of a text has no character after it.
        return [owners[min(begin, len(owners) - 1)] if owners else 0 for begin in begins]
    words, word, open_ = [], -1, False
    for piece in pieces:
        lead = piece[:1] == SPACE
        words.append(min(max(word + (lead or not open_), 0), len(split) - 1))
        for character in piece:
            word += character != SPACE and not open_
            open_ = character != SPACE
    return words


def _characters(piece: str) -> int:
    byte = _BYTE.fullmatch(piece)
    if byte is not None:
        return int(byte[1], 16) & 0xC0 != 0x80  # only the first byte of a character is counted
    return len(piece.replace(SPACE, ""))


class StoredPieces:
    """The words of sentences that are stored as SentencePiece ids; see `vocabulary.base.StoredWords`.

    User-defined symbols, bytes and unknown tokens are separate words, which keep their segmentation.

    Args:
        model: the model.
        sampling: strength of the sampling.
        ids: id of the model for each id of the vocabulary; -1 if the model lacks it.
    """

    def __init__(self, model: PieceModel, sampling: Sampling, ids: Sequence[int]) -> None:
        self._model, self._sampling, self.size = model, sampling, len(ids)
        names = {id: piece for piece, id in model.normal.items()}
        self._pieces = [names.get(id) for id in ids]
        self._ids = {piece: id for id, piece in enumerate(self._pieces) if piece is not None}
        self.within_words = not model.crosses_spaces
        marks_begin, marks_end = model.marks_begin_words, model.marks_end_words
        self._opens = np.array([piece is None or (marks_begin and piece[0] == SPACE) for piece in self._pieces])
        self._closes = np.array([piece is None or (marks_end and piece[-1] == SPACE) for piece in self._pieces])

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return whether a word begins with each id; see `StoredWords.begins`."""
        begins = self._opens[ids]
        begins[1:] |= self._closes[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """Return the text of a word, or None; see `StoredWords.text`."""
        pieces = [self._pieces[id] for id in ids]
        return None if None in pieces else "".join(pieces)  # type: ignore[arg-type]

    def sampler(self) -> WordSampler:
        """Return a new sampler of segmentations; see `StoredWords.sampler`."""
        if not self._model.is_bpe:
            return BatchUnigramSampler(self._model, self._sampling.alpha, self._ids.__getitem__)
        return BatchBpeDropout(self._rank, self._symbols, self._ids.get, self._sampling.alpha)

    def _rank(self, left_piece: str, right_piece: str) -> float | None:
        score = self._model.scores.get(left_piece + right_piece)
        return None if score is None else -score

    def _symbols(self, word: str) -> str | None:
        return word if all(character in self._ids for character in word) else None


class PieceSampler:
    """A sampler of segmentations of texts. Thread-safe: a lock protects its cache.

    Args:
        processor: SentencePiece's processor of the model.
        sampling: strength of the sampling.

    Raises:
        SettingsError: the model has only one segmentation of a text.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, sampling: Sampling) -> None:
        self._processor, self._sampling = processor, sampling
        self._model = PieceModel(processor.serialized_model_proto())
        self._words = (BpeDropout if self._model.is_bpe else UnigramSampler)(self._model, sampling.alpha)
        self._lock = threading.Lock()  # protects the cache of words

    def ids(self, texts: Sequence[str], seed: int, first: int) -> list[list[int]]:
        """Sample each text by (seed, `first` + index of the text), and return the ids of the model."""
        if self._uses_nbest:
            return [ids for ids, _ in self._sample_nbest(texts, seed, first)]
        return [self._model.ids(pieces) for pieces in self._sample(texts, seed, first)]

    def piece_names(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        """Return the pieces of the same samples as `ids`."""
        if self._uses_nbest:
            return [pieces for _, pieces in self._sample_nbest(texts, seed, first)]
        return [self._model.piece_names(pieces) for pieces in self._sample(texts, seed, first)]

    @property
    def _uses_nbest(self) -> bool:
        return self._sampling.nbest >= 0 and not self._model.is_bpe

    def _sample(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        normalized = self._processor.normalize(list(texts))
        numbers = uniform_numbers(seed, first, [len(text) for text in normalized])
        draw, samples = self._words.draw, []
        with self._lock:
            for text, uniform in zip(normalized, map(iter, numbers), strict=True):
                pieces: list[str] = []
                for span, is_symbol in self._model.spans(text):
                    pieces += [span] if is_symbol else draw(span, uniform)
                samples.append(pieces)
        return samples

    def _sample_nbest(self, texts: Sequence[str], seed: int, first: int) -> list[tuple[list[int], list[str]]]:
        """Sample among the best segmentations by their probabilities to the power of alpha; return ids and pieces."""
        size, samples = max(1, self._sampling.nbest), []
        for text, (uniform,) in zip(texts, uniform_numbers(seed, first, [1] * len(texts)), strict=True):
            segmentations = list(zip(*(self._processor.nbest_encode(text, nbest_size=size, out_type=kind)
                                       for kind in (int, str)), strict=True))
            scores = [self._model.score(ids, pieces) for ids, pieces in segmentations]
            bounds = list(accumulate(math.exp(self._sampling.alpha * (score - max(scores))) for score in scores))
            samples.append(segmentations[bisect_right(bounds[:-1], uniform * bounds[-1])])
        return samples
