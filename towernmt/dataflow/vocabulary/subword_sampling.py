"""Random segmentations of a word: BPE-dropout (Provilkov et al., 2020) and unigram sampling (Kudo, 2018).

**BPE-dropout** (arXiv:1910.13267). Each step drops each possible merge with probability `dropout`, and applies the best
of the other merges. The word is complete when no merge is left. So a step applies the i-th best merge (from 0) with
probability `dropout^i (1 - dropout)`, and uses one random number.

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

_CACHED_SYMBOLS = 2_000_000  # total number of symbols of the cached states, about 50 bytes each
_LONGEST_CACHED = 32  # characters; longer words rarely occur again
_ALL_MERGES = 1 << 62  # number of dropped merges that stands for all

Merge = tuple[float, int, int]
"""Negated score, beginning of the first symbol, end of the second symbol; so the best merge sorts first."""


class _State:
    """An unfinished segmentation.

    Attributes:
        begins: index at which each symbol begins, and the end of the word.
        merges: the possible merges, the best first.
        next_state: the cached state after the best merge, or None.
        pieces: the cached text of the symbols, or None.
    """

    __slots__ = ("begins", "merges", "next_state", "pieces")

    def __init__(self, begins: list[int], merges: list[Merge]) -> None:
        self.begins, self.merges = begins, merges
        self.next_state: _State | None = None
        self.pieces: list[str] | None = None


class BpeDropout:
    """A sampler of segmentations of words by BPE-dropout.

    Args:
        model: a BPE model.
        dropout: probability of dropping a merge, from 0; more than 1 counts as 1.
    """

    def __init__(self, model: PieceModel, dropout: float) -> None:
        self._scores = model.scores
        # A number u from 0 to below 1 drops floor(log(1 - u) / log(dropout)) merges; None drops all.
        self._scale = None if dropout >= 1 else 1 / math.log(dropout) if dropout > 0 else 0.0
        self._cache: dict[str, _State] = {}
        self._symbols = 0

    def draw(self, word: str, uniform: Iterator[float]) -> list[str]:
        """Return the subwords of a sample. It uses fewer random numbers than the word has characters, or none."""
        state = self._cache.get(word) or self._initial_state(word)
        dropped = self._dropped_merges(uniform)
        if len(word) <= _LONGEST_CACHED:  # until a merge is dropped, all samples share the same cached states
            while not dropped and state.merges:
                state = state.next_state or self._merge_best(word, state)
                dropped = self._dropped_merges(uniform) if state.merges else 0
            if dropped >= len(state.merges):
                if state.pieces is None:
                    state.pieces = _pieces(word, state.begins)
                return state.pieces
        begins, merges = state.begins.copy(), state.merges.copy()
        while dropped < len(merges):
            self._merge(word, begins, merges, dropped)
            dropped = self._dropped_merges(uniform) if merges else 0
        return _pieces(word, begins)

    def _dropped_merges(self, uniform: Iterator[float]) -> int:
        """Return the number of best merges that a step drops."""
        return _ALL_MERGES if self._scale is None else int(self._scale * log1p(-next(uniform, 0.0)))

    def _initial_state(self, word: str) -> _State:
        scores = self._scores.get
        merges = [(-score, begin, begin + 2) for begin in range(len(word) - 1)
                  if (score := scores(word[begin:begin + 2])) is not None]
        state = _State(list(range(len(word) + 1)), sorted(merges))
        if len(word) <= _LONGEST_CACHED:
            self._cache[word] = self._count_cached(state)
        return state

    def _count_cached(self, state: _State) -> _State:
        """Return a state that will be cached, and count its symbols. A full cache is cleared first."""
        if self._symbols > _CACHED_SYMBOLS:
            self._cache, self._symbols = {}, 0
        self._symbols += len(state.begins)
        return state

    def _merge_best(self, word: str, state: _State) -> _State:
        next_state = _State(state.begins.copy(), state.merges.copy())
        self._merge(word, next_state.begins, next_state.merges, 0)
        state.next_state = self._count_cached(next_state)
        return next_state

    def _merge(self, word: str, begins: list[int], merges: list[Merge], number: int) -> None:
        """Apply a merge, and replace the merges of its two symbols by those of the new symbol."""
        scores = self._scores.get
        _, begin, end = merges.pop(number)
        index = bisect_left(begins, begin)
        middle = begins.pop(index + 1)
        if index:
            before = begins[index - 1]
            score = scores(word[before:middle])
            if score is not None:
                merges.pop(bisect_left(merges, (-score, before, middle)))
            score = scores(word[before:end])
            if score is not None:
                insort(merges, (-score, before, end))
        if end < len(word):
            beyond = begins[index + 2]
            score = scores(word[middle:beyond])
            if score is not None:
                merges.pop(bisect_left(merges, (-score, middle, beyond)))
            score = scores(word[begin:beyond])
            if score is not None:
                insort(merges, (-score, begin, beyond))


def _pieces(word: str, begins: list[int]) -> list[str]:
    return [word[begin:end] for begin, end in pairwise(begins)]


_CACHED_ARCS = 1_000_000  # total number of subwords in the cached lattices, about 100 bytes each
_MAX_ALPHA = 1e6  # with this alpha only ties are random; a larger one would make the sums inexact

Lattice = list[tuple[list[float], list[str]]]
"""For each end of a prefix: the cumulative probabilities of its possible last subwords, and these subwords."""


class UnigramSampler:
    """A sampler of segmentations of words under a unigram model.

    Args:
        model: a unigram model.
        alpha: exponent of the probabilities, from 0.
    """

    def __init__(self, model: PieceModel, alpha: float) -> None:
        self._scores, self._unknown, self._longest = model.scores, model.unknown_score, model.longest
        self._alpha = min(alpha, _MAX_ALPHA)
        self._cache: dict[str, Lattice] = {}
        self._arcs = 0

    def draw(self, word: str, uniform: Iterator[float]) -> list[str]:
        """Return the subwords of a sample. It uses at most one random number for each character of the word."""
        lattice = self._cache.get(word) or self._cached_lattice(word)
        pieces = []
        end = len(word)
        while end:
            bounds, choices = lattice[end]
            piece = choices[bisect_right(bounds, next(uniform))] if bounds else choices[0]
            pieces.append(piece)
            end -= len(piece)
        pieces.reverse()
        return pieces

    def _cached_lattice(self, word: str) -> Lattice:
        lattice = self.lattice(word)
        if len(word) <= _LONGEST_CACHED:
            if self._arcs > _CACHED_ARCS:
                self._cache, self._arcs = {}, 0
            self._cache[word] = lattice
            self._arcs += sum(len(choices) for _, choices in lattice)
        return lattice

    def lattice(self, word: str) -> Lattice:
        """Return the possible last subwords of each prefix of `word`, with cumulative probabilities.

        The probabilities are empty if only one subword is possible.
        """
        score_of, alpha, longest = self._scores.get, self._alpha, self._longest
        forward = [0.0]
        lattice: Lattice = [([], [])]
        for end in range(1, len(word) + 1):
            choices, weights = [], []
            for start in range(max(0, end - longest), end):
                piece = word[start:end]
                score = score_of(piece)
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
            # Without the last bound, so that rounding cannot leave a random number without a subword.
            lattice.append(([bound / total for bound in bounds[:-1]], choices))
        return lattice


_BLOCK = 64  # random numbers of a text in each layer; a longer text uses several layers
_OUTPUTS = 4  # outputs of Philox for each value of its counter
_LAYER = 1 << 64  # values of the counter for each layer


def uniform_numbers(seed: int, first: int, counts: Sequence[int]) -> list[list[float]]:
    """Return random numbers from 0 to below 1: `counts[i]` numbers for the text of number `first + i`.

    Args:
        seed: seed, from 0.
        first: number of the first text, from 0.
        counts: number of random numbers of each text.
    """
    sizes = np.asarray(counts, np.int64)
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    numbers: list[list[float]] = [[] for _ in counts]
    for layer in range(-(-int(sizes.max(initial=0)) // _BLOCK)):
        rows = np.flatnonzero(sizes > layer * _BLOCK)
        begin, end = int(rows[0]), int(rows[-1]) + 1
        counter = layer * _LAYER + (first + begin) * (_BLOCK // _OUTPUTS)
        raw = np.random.Philox(key=key, counter=counter).random_raw((end - begin) * _BLOCK)
        uniform = ((raw >> np.uint64(11)).astype(np.float64) * 2.0 ** -53).reshape(end - begin, _BLOCK)
        for row in rows.tolist():
            numbers[row] += uniform[row - begin, :sizes[row] - layer * _BLOCK].tolist()
    return numbers
