"""Segmentations of a word by byte-pair merges of which some are left out (Provilkov et al., 2020, arXiv:1910.13267).

At each step each possible merge is left out with a chance of `dropout`, and of the others the one of the highest
score is made; the word is done where none is left. So it is the i-th best merge (from 0) that is made, with probability
`dropout^i (1 - dropout)`: a step takes one random number.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import pairwise
from math import log1p

from towernmt.dataflow.subword.piece_model import PieceModel

_CACHED_SYMBOLS = 1_000_000  # symbols of the states that are kept, some 100 bytes each
_LONGEST_CACHED = 32  # characters; longer words hardly come again

Merge = tuple[float, int, int]
"""Minus the score, where the first of the two symbols begins and where the second ends: the best sorts first."""


class _State:
    """A segmentation on the way.

    Attributes:
        begins: where its symbols begin, and the end of the word.
        merges: that are possible, sorted.
        best: the state after the best merge, if that is remembered.
        pieces: the symbols, once they were wanted.
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
        dropout: chance of a merge to be left out, 0 to 1; more is 1.
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
        usual = len(word) <= _LONGEST_CACHED  # whether no merge was left out yet: these states come again and again
        scale = self._scale
        while state.merges:
            place = int(scale * log1p(-next(uniform))) if scale is not None else len(state.merges)
            if place >= len(state.merges):
                break
            usual = usual and not place
            following = state.best if usual else None
            if following is None:
                following = self._merged(word, state, state.merges[place])
                if usual:
                    state.best = self._counted(following)
            state = following
        if state.pieces is None:
            state.pieces = [word[begin:end] for begin, end in pairwise(state.begins)]
        return state.pieces

    def _make(self, word: str) -> _State:
        scores = self._scores.get
        merges = [(-score, begin, begin + 2) for begin in range(len(word) - 1)
                  if (score := scores(word[begin:begin + 2])) is not None]
        state = _State(list(range(len(word) + 1)), sorted(merges))
        if len(word) <= _LONGEST_CACHED:
            self._cache[word] = self._counted(state)
        return state

    def _counted(self, state: _State) -> _State:
        """A state that is to be kept: where there are too many, all are forgotten first."""
        if self._symbols > _CACHED_SYMBOLS:
            self._cache, self._symbols = {}, 0
        self._symbols += len(state.begins)
        return state

    def _merged(self, word: str, state: _State, merge: Merge) -> _State:
        """The state after one merge: what its two symbols could merge with gives way to what the new one can."""
        _, begin, end = merge
        begins, merges = state.begins.copy(), state.merges.copy()
        place = bisect_left(begins, begin)
        middle = begins.pop(place + 1)
        neighbours = []  # (what was possible before, what is now)
        if place > 0:
            neighbours.append(((begins[place - 1], middle), (begins[place - 1], end)))
        if end < len(word):
            beyond = begins[bisect_right(begins, end)]
            neighbours.append(((middle, beyond), (begin, beyond)))
        merges.pop(bisect_left(merges, merge))
        for former, new in neighbours:
            score = self._scores.get(word[former[0]:former[1]])
            if score is not None:
                merges.pop(bisect_left(merges, (-score, *former)))
            score = self._scores.get(word[new[0]:new[1]])
            if score is not None:
                insort(merges, (-score, *new))
        return _State(begins, merges)
