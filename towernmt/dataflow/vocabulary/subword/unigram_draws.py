"""Segmentations of very many words drawn at once under a unigram model (Kudo, 2018, arXiv:1804.10959).

Each word's lattice is made once, by `UnigramSampler`, and laid out in flat arrays. The pieces of all words are then
drawn in step: the last piece of each, then the one before it, until all words are at their beginning.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.subword.piece_model import PieceModel
from towernmt.dataflow.vocabulary.subword.unigram_sampling import UnigramSampler

_BITS = 32  # of a probability; the number of its node is in the 31 above, so no draw depends on how large that is


class UnigramDraws:
    """Draws segmentations of words that were added before. See `towernmt.dataflow.vocabulary.base.WordDraws`.

    Args:
        model: a unigram model.
        alpha: exponent of the probabilities, from 0.
        id_of: the id of a piece.
    """

    def __init__(self, model: PieceModel, alpha: float, id_of: Callable[[str], int]) -> None:
        self._scores, self._sampler, self._id_of = model.scores, UnigramSampler(model, alpha), id_of
        self._lengths, self._first_nodes = array("i"), array("q")  # of each word: characters, node of its first prefix
        self._nodes = 0
        self._bounds = array("q")  # of each arc: the number of its node, and behind it its cumulative probability
        self._widths, self._ids = array("i"), array("i")  # of each arc: characters of its piece, and the piece

    @property
    def held_bytes(self) -> int:
        """See `WordDraws.held_bytes`."""
        return 16 * len(self._bounds) + 12 * len(self._lengths)

    def add(self, word: str) -> int | None:
        """See `WordDraws.add`. None where a character lacks a piece: not all segmentations would be of pieces."""
        if any(character not in self._scores for character in word):
            return None
        self._first_nodes.append(self._nodes)
        self._lengths.append(len(word))
        for bounds, choices in self._sampler.lattice(word)[1:]:
            node = self._nodes << _BITS
            self._bounds.extend([node + int(bound * 2.0 ** _BITS) for bound in bounds])
            self._bounds.append(node + (1 << _BITS))  # above all that is drawn: the last arc is always found
            self._widths.extend(map(len, choices))
            self._ids.extend(map(self._id_of, choices))
            self._nodes += 1
        return len(self._lengths) - 1

    def takes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `WordDraws.takes`."""
        return np.array(self._lengths)[numbers].astype(np.int64)

    def draw(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
             ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `WordDraws.draw`."""
        bounds, widths = np.array(self._bounds), np.array(self._widths)
        parts = (uniform * 2.0 ** _BITS).astype(np.int64)
        # Equal words stand side by side, so that neighbours look into the same part of the arrays.
        active = np.argsort(numbers, kind="stable")
        ends = self.takes(numbers[active])
        nodes, uniform_places = np.array(self._first_nodes)[numbers] - 1, first - 1  # of an end of 0 characters
        counts = np.zeros(len(numbers), np.int64)
        steps = []
        while len(active):
            arcs = np.searchsorted(bounds, (nodes[active] + ends << _BITS) + parts[uniform_places[active] + ends],
                                   side="right")
            steps.append((active, arcs))
            counts[active] += 1
            ends = ends - widths[arcs]
            unfinished = ends > 0
            active, ends = active[unfinished], ends[unfinished]
        drawn = np.empty(int(counts.sum()), np.int32)
        places, ids = np.cumsum(counts) - 1, np.array(self._ids)
        for step, (active, arcs) in enumerate(steps):
            drawn[places[active] - step] = ids[arcs]
        return drawn, counts
