"""Segmentations of a word drawn exactly by their probability under a unigram model (Kudo, 2018, arXiv:1804.10959).

Forward filtering, backward sampling: the forward scores of all prefixes are computed once, and pieces are then drawn
from the end of the word to its beginning. A segmentation is drawn in proportion to the product of its pieces'
probabilities, raised to the power of alpha.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

from towernmt.dataflow.vocabulary.subword.piece_model import PieceModel

_CACHED_ARCS = 1_000_000  # pieces in the lattices that are kept, some 100 bytes each
_LONGEST_CACHED = 32  # characters; longer words hardly come again
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
