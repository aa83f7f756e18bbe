"""BPE-dropout: a word is segmented by merges, some of which are left out (Provilkov et al., 2020, arXiv:1910.13267).

At each step, each possible merge is left out with probability `dropout`, and the best of the others is made. The word
is done when no merge is left. So a step makes the i-th best merge (from 0) with probability `dropout^i (1 - dropout)`,
and takes one random number.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from math import log1p

from towernmt.dataflow.vocabulary.subword.piece_model import PieceModel

_CACHED_SYMBOLS = 2_000_000  # symbols of the states that are kept, some 50 bytes each
_LONGEST_CACHED = 32  # characters; longer words hardly come again
_ALL = 1 << 62  # merges to leave out

Merge = tuple[float, int, int]
"""Minus the score, where the first of the two symbols begins and where the second ends: the best sorts first."""


class _State:
    """An unfinished segmentation.

    Attributes:
        begins: where its symbols begin, and the end of the word.
        merges: the possible merges, the best first.
        best: the state after the best merge, if it is cached.
        pieces: the symbols as text, once they were asked for.
    """

    __slots__ = ("begins", "best", "merges", "pieces")

    def __init__(self, begins: list[int], merges: list[Merge]) -> None:
        self.begins, self.merges = begins, merges
        self.best: _State | None = None
        self.pieces: list[str] | None = None


class BpeDropout:
    """Draws segmentations of words.

    Args:
        model: a BPE model.
        dropout: probability that a merge is left out, from 0; more than 1 counts as 1.
    """

    def __init__(self, model: PieceModel, dropout: float) -> None:
        self._scores = model.scores
        # A number u from 0 to below 1 leaves out floor(log(1 - u) / log(dropout)) merges; None: all.
        self._scale = None if dropout >= 1 else 1 / math.log(dropout) if dropout > 0 else 0.0
        self._cache: dict[str, _State] = {}
        self._symbols = 0

    def draw(self, word: str, uniform: Iterator[float]) -> list[str]:
        """The pieces of a segmentation; takes fewer numbers than the word has characters, or none."""
        state = self._cache.get(word) or self._make(word)
        place = self._place(uniform)
        if len(word) <= _LONGEST_CACHED:  # until a merge is left out, all draws share the same cached states
            while not place and state.merges:
                state = state.best or self._after_best(word, state)
                place = self._place(uniform) if state.merges else 0
            if place >= len(state.merges):
                if state.pieces is None:
                    state.pieces = _pieces(word, state.begins)
                return state.pieces
        begins, merges = state.begins.copy(), state.merges.copy()
        while place < len(merges):
            self._merge(word, begins, merges, place)
            place = self._place(uniform) if merges else 0
        return _pieces(word, begins)

    def _place(self, uniform: Iterator[float]) -> int:
        """How many of the best merges are left out."""
        return _ALL if self._scale is None else int(self._scale * log1p(-next(uniform, 0.0)))

    def _make(self, word: str) -> _State:
        scores = self._scores.get
        merges = [(-score, begin, begin + 2) for begin in range(len(word) - 1)
                  if (score := scores(word[begin:begin + 2])) is not None]
        state = _State(list(range(len(word) + 1)), sorted(merges))
        if len(word) <= _LONGEST_CACHED:
            self._cache[word] = self._counted(state)
        return state

    def _counted(self, state: _State) -> _State:
        """Count a state that goes into the cache. If the cache is full, it is emptied first."""
        if self._symbols > _CACHED_SYMBOLS:
            self._cache, self._symbols = {}, 0
        self._symbols += len(state.begins)
        return state

    def _after_best(self, word: str, state: _State) -> _State:
        following = _State(state.begins.copy(), state.merges.copy())
        self._merge(word, following.begins, following.merges, 0)
        state.best = self._counted(following)
        return following

    def _merge(self, word: str, begins: list[int], merges: list[Merge], number: int) -> None:
        """Make one merge. The merges of its two symbols with their neighbours give way to those of the new symbol."""
        scores = self._scores.get
        _, begin, end = merges.pop(number)
        place = bisect_left(begins, begin)
        middle = begins.pop(place + 1)
        if place:
            before = begins[place - 1]
            score = scores(word[before:middle])
            if score is not None:
                merges.pop(bisect_left(merges, (-score, before, middle)))
            score = scores(word[before:end])
            if score is not None:
                insort(merges, (-score, before, end))
        if end < len(word):
            beyond = begins[place + 2]
            score = scores(word[middle:beyond])
            if score is not None:
                merges.pop(bisect_left(merges, (-score, middle, beyond)))
            score = scores(word[begin:beyond])
            if score is not None:
                insort(merges, (-score, begin, beyond))


def _pieces(word: str, begins: list[int]) -> list[str]:
    return [word[begin:end] for begin, end in pairwise(begins)]
