"""Segmentations of very many words drawn at once by BPE-dropout (Provilkov et al., 2020, arXiv:1910.13267).

A segmentation is a state, with its possible merges in order, the best first. A step leaves out each of them with probability
`dropout` and makes the best of the others, which leads to another state; where all are left out, the word is done. All
words take their steps together. A state is made when a word first comes to it, and is kept.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.subword.spans import spans

_UNMADE = -1


class MergeDraws:
    """Draws segmentations of words that were added before. See `towernmt.dataflow.vocabulary.base.WordDraws`.

    Args:
        rank: of the merge of two symbols, the lowest being the best; None: they do not merge.
        symbols: the symbols that a word begins as; None for a word that is to stay as it is.
        ids: of the symbols of a segmentation; none where it has a symbol that is no piece.
        dropout: probability that a merge is left out, from 0; more than 1 counts as 1.
    """

    def __init__(self, rank: Callable[[str, str], float | None], symbols: Callable[[str], Sequence[str] | None],
                 ids: Callable[[Sequence[str]], list[int]], dropout: float) -> None:
        self._rank, self._first, self._ids_of, self._dropout = rank, symbols, ids, min(dropout, 1.0)
        self._states: dict[tuple[str, ...], int] = {}
        self._symbols: list[tuple[str, ...]] = []
        self._merges, self._first_children = array("i"), array("q")  # of each state: how many, and where in `children`
        self._children, self._parents = array("i"), array("i")  # of each merge: the state after it and that before it
        self._lengths = array("i")  # of each state: its symbols
        self._first_ids, self._counts, self._ids = array("q"), array("i"), array("i")

    @property
    def size(self) -> int:
        """Symbols and merges that are held, some 50 bytes each."""
        return len(self._children) + len(self._ids)

    def add(self, word: str) -> int | None:
        """The number of a word; None where it is to stay as it is."""
        symbols = self._first(word)
        return None if symbols is None else self._state(tuple(symbols))

    def takes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `WordDraws.takes`."""
        return np.array(self._lengths)[numbers].astype(np.int64)

    def draw(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
             ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `WordDraws.draw`."""
        states = numbers.copy()
        # A number u from 0 to below 1 leaves out floor(log(1 - u) / log(dropout)) merges.
        scale = 1 / math.log(self._dropout) if 0 < self._dropout < 1 else 0.0
        active = np.arange(len(numbers) if self._dropout < 1 else 0)
        step = 0
        while len(active):
            left_out = (scale * np.log1p(-uniform[first[active] + step])).astype(np.int64)
            current = states[active]
            going = left_out < np.array(self._merges)[current]
            active = active[going]
            merges = np.array(self._first_children)[current[going]] + left_out[going]
            children = np.array(self._children)
            unmade = np.unique(merges[children[merges] == _UNMADE])
            if len(unmade):
                self._make(unmade.tolist())
                children = np.array(self._children)
            states[active] = children[merges]
            step += 1
        counts = np.array(self._counts)[states].astype(np.int64)
        return np.array(self._ids)[spans(np.array(self._first_ids)[states], counts)], counts

    def _make(self, merges: list[int]) -> None:
        for merge in merges:
            parent = self._parents[merge]
            symbols = self._symbols[parent]
            _, place = self._possible(symbols)[merge - self._first_children[parent]]
            merged = (*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2:])
            self._children[merge] = self._state(merged)

    def _state(self, symbols: tuple[str, ...]) -> int:
        number = self._states.get(symbols)
        if number is None:
            number = self._states[symbols] = len(self._symbols)
            self._symbols.append(symbols)
            self._lengths.append(len(symbols))
            merges = len(self._possible(symbols))
            self._merges.append(merges)
            self._first_children.append(len(self._children))
            self._children.extend([_UNMADE] * merges)
            self._parents.extend([number] * merges)
            ids = self._ids_of(symbols)
            self._first_ids.append(len(self._ids))
            self._counts.append(len(ids))
            self._ids.extend(ids)
        return number

    def _possible(self, symbols: tuple[str, ...]) -> list[tuple[float, int]]:
        """Rank and place of each merge, the best first."""
        rank = self._rank
        found = []
        for place in range(len(symbols) - 1):
            value = rank(symbols[place], symbols[place + 1])
            if value is not None:
                found.append((value, place))
        return sorted(found)
