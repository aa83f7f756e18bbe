"""Segment stored ids again: find the words that they spell, and sample a segmentation of each word.

The text is not needed. The concatenated subwords of a sentence are its text, so a sample among the segmentations of
each word is a sample among those of the sentence. Unknown tokens have no text, and keep their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import StoredWords, WordSampler
from towernmt.dataflow.vocabulary.sentencepiece_model import spans

_CACHE_BYTES = 256 << 20  # the cache of words is cleared between slices of sentences if it is larger
_WORD_BYTES = 200
_SLICE = 16_384  # sentences
_UNSEEN, _KEPT = -2, -1


class Resegmented(NamedTuple):
    """Sentences with sampled segmentations.

    Attributes:
        ids: `[new tokens]`, concatenated ids of all sentences.
        offsets: int64 `[sentences + 1]`, beginning of each sentence in `ids`.
        begins: int64 `[words]`, index of the old token at which each word began.
        counts: int64 `[words]`, number of new tokens of each word.
    """

    ids: NDArray[np.integer]
    offsets: NDArray[np.int64]
    begins: NDArray[np.int64]
    counts: NDArray[np.int64]


class Resegmenter:
    """A sampler of segmentations of sentences that are stored as ids. Not for several threads at once.

    Args:
        words: finds the words of the vocabulary in ids.
    """

    def __init__(self, words: StoredWords) -> None:
        self._words = words
        self._clear_cache()

    def resegment(self, ids: NDArray[np.integer], offsets: NDArray[np.int64], key: Sequence[int], longest: int
                  ) -> Resegmented:
        """Sample a segmentation of each sentence, as a function of the arguments alone.

        Args:
            ids: `[tokens]`, concatenated ids of all sentences.
            offsets: int64 `[sentences + 1]`, beginning of each sentence in `ids`.
            key: whole numbers from 0, the key of the random numbers.
            longest: maximum number of tokens. A sentence that would have more keeps its segmentation.
        """
        slices = []
        for number, first in enumerate(range(0, len(offsets) - 1, _SLICE)):
            bounds = offsets[first:first + _SLICE + 1]
            slices.append(self._resegment_slice(ids[bounds[0]:bounds[-1]], bounds - bounds[0], [*key, number], longest))
        if not slices:
            return Resegmented(ids, offsets, np.zeros(0, np.int64), np.zeros(0, np.int64))
        lengths = np.concatenate([np.diff(segmented.offsets) for segmented in slices])
        begins = np.concatenate([segmented.begins + offsets[number * _SLICE]
                                 for number, segmented in enumerate(slices)])
        return Resegmented(np.concatenate([segmented.ids for segmented in slices]),
                           np.concatenate([[0], np.cumsum(lengths)]),
                           begins, np.concatenate([segmented.counts for segmented in slices]))

    def _resegment_slice(self, ids: NDArray[np.integer], offsets: NDArray[np.int64], key: Sequence[int], longest: int
                ) -> Resegmented:
        if _WORD_BYTES * len(self._numbers) + self._sampler.held_bytes > _CACHE_BYTES:
            self._clear_cache()
        starts = offsets[:-1][np.diff(offsets) > 0]  # of sentences that are not empty
        opening = self._words.begins(ids)
        opening[starts] = True
        begins = np.flatnonzero(opening)
        old_counts = np.diff(begins, append=len(ids))
        sampled, sampled_begins, counts = self._sample(ids, begins, old_counts, key)
        new_offsets, counts = self._limit_lengths(longest, offsets, begins, old_counts, counts)
        keeps = counts == 0
        counts = np.where(keeps, old_counts, counts)
        new_begins = np.where(keeps, begins + len(sampled), sampled_begins)
        new = np.concatenate([sampled.astype(ids.dtype), ids])[spans(new_begins, counts)]
        return Resegmented(new, new_offsets, begins, counts)

    def _sample(self, ids: NDArray[np.integer], begins: NDArray[np.int64], old_counts: NDArray[np.int64],
                key: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Sample a segmentation of each word.

        Returns:
            (concatenated ids of the words; int64 `[words]`, beginning of each word in them; int64 `[words]`, number of
            ids of each word, 0 if the word keeps its segmentation).
        """
        numbers = self._number(ids, begins, old_counts)
        numbered = np.flatnonzero(numbers != _KEPT)
        number_counts = self._sampler.uniforms_per_word(numbers[numbered])
        sampled, numbered_counts = self._sampler.draw(numbers[numbered], _uniform(key, int(number_counts.sum())),
                                                      np.cumsum(number_counts) - number_counts)
        counts, sampled_begins = np.zeros(len(begins), np.int64), np.zeros(len(begins), np.int64)
        counts[numbered], sampled_begins[numbered] = numbered_counts, np.cumsum(numbered_counts) - numbered_counts
        return sampled, sampled_begins, counts

    def _number(self, ids: NDArray[np.integer], begins: NDArray[np.int64], counts: NDArray[np.int64]
                ) -> NDArray[np.int64]:
        """Return int64 `[words]`: the number of each word in `self._sampler`, or `_KEPT`."""
        numbers = np.empty(len(begins), np.int64)
        single = counts == 1
        pieces = ids[begins[single]]
        for piece in np.unique(pieces).tolist():
            if self._single[piece] == _UNSEEN:
                self._single[piece] = self._add([piece])
        numbers[single] = self._single[pieces]
        several = np.flatnonzero(~single)
        wide = ids.astype(np.int32, copy=False)
        content, numbers_of_words = wide.tobytes(), self._numbers
        several_numbers = []
        for begin, end in zip((4 * begins[several]).tolist(), (4 * (begins + counts)[several]).tolist(), strict=True):
            word = content[begin:end]
            number = numbers_of_words.get(word)
            if number is None:
                number = numbers_of_words[word] = self._add(np.frombuffer(word, np.int32).tolist())
            several_numbers.append(number)
        numbers[several] = several_numbers
        return numbers

    def _add(self, ids: list[int]) -> int:
        text = self._words.text(ids)
        number = None if text is None or len(text) < 2 else self._sampler.add(text)
        return _KEPT if number is None else number

    def _limit_lengths(self, longest: int, offsets: NDArray[np.int64], begins: NDArray[np.int64],
                       old_counts: NDArray[np.int64], counts: NDArray[np.int64]
                       ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the new offsets, and `counts` with 0 for the words of sentences that would be too long."""
        word_offsets = np.searchsorted(begins, offsets)  # [sentences + 1]
        for _ in range(2):
            ends = np.concatenate([[0], np.cumsum(np.where(counts == 0, old_counts, counts))])
            new_offsets = ends[word_offsets]
            too_long = np.diff(new_offsets) > longest
            if not too_long.any():
                break
            counts = np.where(np.repeat(too_long, np.diff(word_offsets)), 0, counts)
        return new_offsets, counts

    def _clear_cache(self) -> None:
        self._sampler: WordSampler = self._words.sampler()
        self._numbers: dict[bytes, int] = {}
        self._single = np.full(self._words.size, _UNSEEN, np.int64)


def _uniform(key: Sequence[int], count: int) -> NDArray[np.float64]:
    """Return float64 `[count]`, from 0 to below 1: raw output of Philox, which is the same in all versions of NumPy."""
    raw = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0 ** -53
