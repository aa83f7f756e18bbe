"""Random segmentations of a word: BPE-dropout (Provilkov et al., 2020) and unigram sampling (Kudo, 2018).

**BPE-dropout** (arXiv:1910.13267). At each step, each possible merge is left out with probability `dropout`, and the
best of the others is made. The word is complete when no merge is left. So a step makes the i-th best merge (from 0)
with probability `dropout^i (1 - dropout)`, and uses one random number.

**Unigram sampling** (arXiv:1804.10959), exact, by forward filtering and backward sampling. The forward scores of all
prefixes are computed once, and subwords are then drawn from the end of the word to its beginning. The probability of
a segmentation is proportional to the product of its subwords' probabilities, raised to the power of alpha.

**Random numbers** are raw output of a counter-based generator (Philox; Salmon et al., 2011). The counter consists of
the number of the text and the index in the text. So the random numbers of a text depend on (seed, its number) alone:
neither the process, nor NumPy's version, nor the other texts of a call change them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log1p

import numpy as np

from towernmt.dataflow.vocabulary.sentencepiece_model import PieceModel

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


_CACHED_ARCS = 1_000_000  # pieces in the lattices that are kept, some 100 bytes each
_SHARPEST = 1e6  # alpha: from here on only ties are random; more would make sums inexact

Lattice = list[tuple[list[float], list[str]]]
"""For each end of a prefix: the cumulative probabilities of its possible last pieces, and these pieces."""


class UnigramSampler:
    """Draws segmentations of words.

    Args:
        model: a unigram model.
        alpha: exponent of the probabilities, from 0.
    """

    def __init__(self, model: PieceModel, alpha: float) -> None:
        self._scores, self._unknown, self._longest = model.scores, model.unknown_score, model.longest
        self._alpha = min(alpha, _SHARPEST)
        self._cache: dict[str, Lattice] = {}
        self._arcs = 0

    def draw(self, word: str, uniform: Iterator[float]) -> list[str]:
        """The pieces of a segmentation; takes at most as many numbers as the word has characters."""
        lattice = self._cache.get(word) or self._make(word)
        pieces = []
        end = len(word)
        while end:
            bounds, choices = lattice[end]
            piece = choices[bisect_right(bounds, next(uniform))] if bounds else choices[0]
            pieces.append(piece)
            end -= len(piece)
        pieces.reverse()
        return pieces

    def _make(self, word: str) -> Lattice:
        lattice = self.lattice(word)
        if len(word) <= _LONGEST_CACHED:
            if self._arcs > _CACHED_ARCS:
                self._cache, self._arcs = {}, 0
            self._cache[word] = lattice
            self._arcs += sum(len(choices) for _, choices in lattice)
        return lattice

    def lattice(self, word: str) -> Lattice:
        """The possible last pieces of each prefix of `word`, with cumulative probabilities; none for one piece."""
        known, alpha, longest = self._scores.get, self._alpha, self._longest
        forward = [0.0]
        lattice: Lattice = [([], [])]
        for end in range(1, len(word) + 1):
            choices, weights = [], []
            for start in range(max(0, end - longest), end):
                piece = word[start:end]
                score = known(piece)
                if score is None:
                    if start < end - 1:
                        continue
                    score = self._unknown
                choices.append(piece)
                weights.append(forward[start] + alpha * score)
            top = max(weights)
            if len(choices) == 1:
                forward.append(top)
                lattice.append(([], choices))
                continue
            bounds, total = [], 0.0
            for weight in weights:
                total += math.exp(weight - top)
                bounds.append(total)
            forward.append(top + math.log(total))
            # Without the last bound: a number above all others chooses the last piece, however sums are rounded.
            lattice.append(([bound / total for bound in bounds[:-1]], choices))
        return lattice


_BLOCK = 64  # numbers of a text in each layer; a longer text takes several layers
_OUTPUTS = 4  # of Philox for each value of its counter
_LAYER = 1 << 64  # values of the counter for each layer


def uniform_draws(seed: int, first: int, counts: Sequence[int]) -> list[list[float]]:
    """Numbers from 0 to below 1, `counts[i]` of them for the text of number `first + i`.

    Args:
        seed: from 0.
        first: number of the first text, from 0.
        counts: how many numbers each text gets.
    """
    wanted = np.asarray(counts, np.int64)
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    drawn: list[list[float]] = [[] for _ in counts]
    for layer in range(-(-int(wanted.max(initial=0)) // _BLOCK)):
        rows = np.flatnonzero(wanted > layer * _BLOCK)
        begin, end = int(rows[0]), int(rows[-1]) + 1
        counter = layer * _LAYER + (first + begin) * (_BLOCK // _OUTPUTS)
        raw = np.random.Philox(key=key, counter=counter).random_raw((end - begin) * _BLOCK)
        uniform = ((raw >> np.uint64(11)).astype(np.float64) * 2.0 ** -53).reshape(end - begin, _BLOCK)
        for row in rows.tolist():
            drawn[row] += uniform[row - begin, :wanted[row] - layer * _BLOCK].tolist()
    return drawn
