"""Segment stored ids again: find the words that they spell, and sample a segmentation of each word.

The text is not needed. The concatenated subwords of a sentence are its text, so a sample among the segmentations of
each word is a sample among those of the sentence. Unknown tokens have no text, and keep their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import StoredWords, WordDraws
from towernmt.dataflow.vocabulary.sentencepiece_model import spans

_HELD_BYTES = 256 << 20  # what is known of words; when it is more, it is forgotten before the next sentences
_WORD_BYTES = 200
_SLICE = 16_384  # sentences at a time: what their words take is held at least
_UNSEEN, _KEPT = -2, -1


class Redrawn(NamedTuple):
    """Sentences segmented anew.

    Attributes:
        ids: `[new tokens]`, all sentences one after another.
        offsets: int64 `[sentences + 1]`, where each begins.
        begins: int64 `[words]`: the old token at which each word began.
        counts: int64 `[words]`: new tokens of each word.
    """

    ids: NDArray[np.integer]
    offsets: NDArray[np.int64]
    begins: NDArray[np.int64]
    counts: NDArray[np.int64]


class Redrawer:
    """Segments stored ids anew; not for several threads at once.

    Args:
        words: of the vocabulary that the ids are of.
    """

    def __init__(self, words: StoredWords) -> None:
        self._words = words
        self._forget()

    def redraw(self, ids: NDArray[np.integer], offsets: NDArray[np.int64], key: Sequence[int], longest: int) -> Redrawn:
        """A segmentation of each sentence; a function of all arguments alone.

        Args:
            ids: `[tokens]`, all sentences one after another.
            offsets: int64 `[sentences + 1]`, where each begins.
            key: whole numbers from 0 that name the draws.
            longest: a sentence that would have more tokens keeps its segmentation.
        """
        slices = []
        for number, first in enumerate(range(0, len(offsets) - 1, _SLICE)):
            part = offsets[first:first + _SLICE + 1]
            slices.append(self._redraw(ids[part[0]:part[-1]], part - part[0], [*key, number], longest))
        if not slices:
            return Redrawn(ids, offsets, np.zeros(0, np.int64), np.zeros(0, np.int64))
        lengths = np.concatenate([np.diff(part.offsets) for part in slices])
        begins = np.concatenate([part.begins + offsets[number * _SLICE] for number, part in enumerate(slices)])
        return Redrawn(np.concatenate([part.ids for part in slices]), np.concatenate([[0], np.cumsum(lengths)]), begins,
                       np.concatenate([part.counts for part in slices]))

    def _redraw(self, ids: NDArray[np.integer], offsets: NDArray[np.int64], key: Sequence[int], longest: int
                ) -> Redrawn:
        if _WORD_BYTES * len(self._numbers) + self._draws.held_bytes > _HELD_BYTES:
            self._forget()
        starts = offsets[:-1][np.diff(offsets) > 0]  # of sentences that are not empty
        opening = self._words.begins(ids)
        opening[starts] = True
        begins = np.flatnonzero(opening)
        old_counts = np.diff(begins, append=len(ids))
        pool, pool_begins, counts = self._drawn(ids, begins, old_counts, key)
        new_offsets, counts = self._within(longest, offsets, begins, old_counts, counts)
        keeps = counts == 0
        counts = np.where(keeps, old_counts, counts)
        places = np.where(keeps, begins + len(pool), pool_begins)
        new = np.concatenate([pool.astype(ids.dtype), ids])[spans(places, counts)]
        return Redrawn(new, new_offsets, begins, counts)

    def _drawn(self, ids: NDArray[np.integer], begins: NDArray[np.int64], old_counts: NDArray[np.int64],
               key: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Drawn ids, and for each word where its own begin there and how many they are: none where it keeps the old."""
        numbers = self._number(ids, begins, old_counts)
        chosen = np.flatnonzero(numbers != _KEPT)
        takes = self._draws.takes(numbers[chosen])
        pool, drawn = self._draws.draw(numbers[chosen], _uniform(key, int(takes.sum())), np.cumsum(takes) - takes)
        counts, places = np.zeros(len(begins), np.int64), np.zeros(len(begins), np.int64)
        counts[chosen], places[chosen] = drawn, np.cumsum(drawn) - drawn
        return pool, places, counts

    def _number(self, ids: NDArray[np.integer], begins: NDArray[np.int64], counts: NDArray[np.int64]
                ) -> NDArray[np.int64]:
        """int64 `[words]`: the number of each word in `self._draws`, or `_KEPT`."""
        numbers = np.empty(len(begins), np.int64)
        single = counts == 1
        pieces = ids[begins[single]]
        for piece in np.unique(pieces).tolist():
            if self._single[piece] == _UNSEEN:
                self._single[piece] = self._add([piece])
        numbers[single] = self._single[pieces]
        several = np.flatnonzero(~single)
        wide = ids.astype(np.int32, copy=False)
        content, known = wide.tobytes(), self._numbers
        found = []
        for begin, end in zip((4 * begins[several]).tolist(), (4 * (begins + counts)[several]).tolist(), strict=True):
            word = content[begin:end]
            number = known.get(word)
            if number is None:
                number = known[word] = self._add(np.frombuffer(word, np.int32).tolist())
            found.append(number)
        numbers[several] = found
        return numbers

    def _add(self, ids: list[int]) -> int:
        text = self._words.text(ids)
        number = None if text is None or len(text) < 2 else self._draws.add(text)
        return _KEPT if number is None else number

    def _within(self, longest: int, offsets: NDArray[np.int64], begins: NDArray[np.int64],
                old_counts: NDArray[np.int64], counts: NDArray[np.int64]
                ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The new offsets, and `counts` without the words of sentences that would be too long."""
        word_offsets = np.searchsorted(begins, offsets)  # [sentences + 1]
        for _ in range(2):
            ends = np.concatenate([[0], np.cumsum(np.where(counts == 0, old_counts, counts))])
            new_offsets = ends[word_offsets]
            too_long = np.diff(new_offsets) > longest
            if not too_long.any():
                break
            counts = np.where(np.repeat(too_long, np.diff(word_offsets)), 0, counts)
        return new_offsets, counts

    def _forget(self) -> None:
        self._draws: WordDraws = self._words.draws()
        self._numbers: dict[bytes, int] = {}
        self._single = np.full(self._words.size, _UNSEEN, np.int64)


def _uniform(key: Sequence[int], count: int) -> NDArray[np.float64]:
    """float64 `[count]`, from 0 to below 1: raw output of Philox, which does not change with NumPy's version."""
    raw = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0 ** -53
