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

_UNMADE, _NO_PIECE = -1, -1
_STATE_BYTES, _MERGE_BYTES = 350, 14

Segmentation = tuple[int, ...]
"""The numbers of its symbols."""


class MergeDraws:
    """Draws segmentations of words that were added before. See `towernmt.dataflow.vocabulary.base.WordDraws`.

    Args:
        rank: of the merge of two symbols, the lowest being the best; None: they do not merge.
        symbols: the symbols that a word begins as; None for a word that is to keep its segmentation.
        id_of: the id of a symbol; None where it is no piece. A word that would have such a symbol keeps its segmentation.
        dropout: probability that a merge is left out, from 0; more than 1 counts as 1.
    """

    def __init__(self, rank: Callable[[str, str], float | None], symbols: Callable[[str], Sequence[str] | None],
                 id_of: Callable[[str], int | None], dropout: float) -> None:
        self._begins_as, self._dropout = symbols, min(dropout, 1.0)
        self._symbols = _Symbols(id_of)
        self._pairs = _Pairs(self._symbols, rank)
        self._states: dict[Segmentation, int] = {}
        self._segmentations: list[Segmentation] = []
        self._merges, self._first_merges = array("i"), array("q")  # of each state: how many, and the first of them
        # Of each merge: the state before it, the place of its first symbol there, and the state after it.
        self._parents, self._places, self._children = array("i"), array("i"), array("i")
        self._lengths, self._first_ids, self._counts = array("i"), array("q"), array("i")  # of each state
        self._ids = array("i")

    @property
    def held_bytes(self) -> int:
        """See `WordDraws.held_bytes`."""
        return _STATE_BYTES * len(self._segmentations) + _MERGE_BYTES * len(self._children)

    def add(self, word: str) -> int | None:
        """See `WordDraws.add`."""
        symbols = self._begins_as(word)
        return None if symbols is None else self._state(tuple(map(self._symbols.number, symbols)))

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
            states[active] = self._after(np.array(self._first_merges)[current[going]] + left_out[going])
            step += 1
        counts = np.array(self._counts)[states].astype(np.int64)
        return np.array(self._ids)[spans(np.array(self._first_ids)[states], counts)], counts

    def _after(self, merges: NDArray[np.int64]) -> NDArray[np.int32]:
        """The states after merges; those that no word came to before are made."""
        children = np.array(self._children)
        unmade = np.unique(merges[children[merges] == _UNMADE])
        for merge in unmade.tolist():
            before, place = self._segmentations[self._parents[merge]], self._places[merge]
            merged = self._pairs[before[place:place + 2]]
            if merged is not None:
                self._children[merge] = self._state((*before[:place], merged[1], *before[place + 2:]))
        return (np.array(self._children) if len(unmade) else children)[merges]

    def _state(self, segmentation: Segmentation) -> int:
        number = self._states.get(segmentation)
        if number is None:
            number = self._states[segmentation] = len(self._segmentations)
            self._segmentations.append(segmentation)
            self._lengths.append(len(segmentation))
            self._add_merges(number, segmentation)
            ids = [self._symbols.ids[symbol] for symbol in segmentation]
            self._first_ids.append(len(self._ids))
            self._counts.append(0 if _NO_PIECE in ids else len(ids))
            self._ids.extend(ids)
        return number

    def _add_merges(self, number: int, segmentation: Segmentation) -> None:
        pairs = self._pairs
        possible = [(merged[0], place) for place, pair in enumerate(zip(segmentation, segmentation[1:], strict=False))
                    if (merged := pairs[pair]) is not None]
        possible.sort()
        self._merges.append(len(possible))
        self._first_merges.append(len(self._children))
        self._parents.extend([number] * len(possible))
        self._places.extend([place for _, place in possible])
        self._children.extend([_UNMADE] * len(possible))


class _Symbols:
    """Numbers of symbols, as they come.

    Attributes:
        names, ids: of each symbol; the id is -1 where it is no piece.
    """

    def __init__(self, id_of: Callable[[str], int | None]) -> None:
        self._id_of = id_of
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []
        self.ids: list[int] = []

    def number(self, symbol: str) -> int:
        number = self._numbers.get(symbol)
        if number is None:
            number = self._numbers[symbol] = len(self.names)
            self.names.append(symbol)
            id = self._id_of(symbol)
            self.ids.append(_NO_PIECE if id is None else id)
        return number


class _Pairs(dict[Segmentation, "tuple[float, int] | None"]):
    """Of two symbols: the rank of their merge, and what they merge to; None: they do not merge."""

    def __init__(self, symbols: _Symbols, rank: Callable[[str, str], float | None]) -> None:
        super().__init__()
        self._symbols, self._rank = symbols, rank

    def __missing__(self, pair: Segmentation) -> tuple[float, int] | None:
        left, right = (self._symbols.names[symbol] for symbol in pair)
        rank = self._rank(left, right)
        found = self[pair] = None if rank is None else (rank, self._symbols.number(left + right))
        return found
