"""Segmentations of very many words drawn at once by BPE-dropout (Provilkov et al., 2020, arXiv:1910.13267).

A segmentation is a state, with its possible merges in order, the best first. A step leaves out each of them with
probability `dropout` and makes the best of the others, which leads to another state; where all are left out, the word
is done. All words take their steps together. A state is made when a word first comes to it, and is kept.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.subword.spans import spans

_UNMADE, _NO_PIECE = -1, -1
_ALL = 1 << 62  # merges to leave out
_STATE_BYTES, _MERGE_BYTES = 350, 14
_LONGEST_KEPT = 32  # symbols; longer words hardly come again, and have as many states

Segmentation = tuple[int, ...]
"""The numbers of its symbols."""


class MergeDraws:
    """Draws segmentations of words that were added before. See `towernmt.dataflow.vocabulary.base.WordDraws`.

    Args:
        rank: of the merge of two symbols, the lowest being the best; None: they do not merge.
        symbols: the symbols that a word begins as; None for a word that is to keep its segmentation.
        id_of: the id of a symbol; None where it is no piece. A word that would have such a one keeps its segmentation.
        dropout: probability that a merge is left out, from 0; more than 1 counts as 1.
    """

    def __init__(self, rank: Callable[[str, str], float | None], symbols: Callable[[str], Sequence[str] | None],
                 id_of: Callable[[str], int | None], dropout: float) -> None:
        self._begins_as = symbols
        self._scale = None if dropout >= 1 else 1 / math.log(dropout) if dropout > 0 else 0.0
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
        lengths = self.takes(numbers)
        short, long = np.flatnonzero(lengths <= _LONGEST_KEPT), np.flatnonzero(lengths > _LONGEST_KEPT)
        counts, first_ids, ids = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64), array("i")
        for word in long.tolist():
            begin = int(first[word])
            drawn = self._alone(numbers[word], self._left_out(uniform[begin:begin + lengths[word]]))
            first_ids[word], counts[word] = len(ids), len(drawn)
            ids.extend(drawn)
        states = self._walked(numbers[short], uniform, first[short])
        first_ids[short], counts[short] = np.array(self._first_ids)[states] + len(ids), np.array(self._counts)[states]
        return np.concatenate([np.array(ids), np.array(self._ids)])[spans(first_ids, counts)], counts

    def _walked(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
                ) -> NDArray[np.int64]:
        """The states in which words end."""
        states, active = numbers.copy(), np.arange(len(numbers))
        counts, first_merges, children = self._tables()
        step = 0
        while len(active):
            left_out, current = self._left_out(uniform[first[active] + step]), states[active]
            going = left_out < counts[current]
            active, merges = active[going], first_merges[current[going]] + left_out[going]
            unmade = np.unique(merges[children[merges] == _UNMADE])
            if len(unmade):
                self._make(unmade.tolist())
                counts, first_merges, children = self._tables()
            states[active] = children[merges]
            step += 1
        return states

    def _left_out(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """How many of the best merges a step leaves out: floor(log(1 - u) / log(dropout))."""
        if self._scale is None:
            return np.full(len(uniform), _ALL)
        return (self._scale * np.log1p(-uniform)).astype(np.int64)

    def _alone(self, state: int, left_out: NDArray[np.int64]) -> list[int]:
        """The ids of a long word, of which no state is kept; `left_out`: how many merges each step leaves out."""
        segmentation = self._segmentations[state]
        for skipped in left_out.tolist():
            possible = self._possible(segmentation)
            if skipped >= len(possible):
                break
            segmentation = self._merged(segmentation, possible[skipped])
        return self._ids_of(segmentation)

    def _tables(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Of each state the number of its merges, and the first of them; of each merge the state after it."""
        return np.array(self._merges), np.array(self._first_merges), np.array(self._children)

    def _make(self, merges: list[int]) -> None:
        """Make the states after merges."""
        for merge in merges:
            before = self._segmentations[self._parents[merge]]
            self._children[merge] = self._state(self._merged(before, self._places[merge]))

    def _state(self, segmentation: Segmentation) -> int:
        number = self._states.get(segmentation)
        if number is None:
            number = self._states[segmentation] = len(self._segmentations)
            self._segmentations.append(segmentation)
            self._lengths.append(len(segmentation))
            places = self._possible(segmentation)
            self._merges.append(len(places))
            self._first_merges.append(len(self._children))
            self._parents.extend([number] * len(places))
            self._places.extend(places)
            self._children.extend([_UNMADE] * len(places))
            ids = self._ids_of(segmentation)
            self._first_ids.append(len(self._ids))
            self._counts.append(len(ids))
            self._ids.extend(ids)
        return number

    def _possible(self, segmentation: Segmentation) -> list[int]:
        """The places of the possible merges, the best first; of those that are as good, the leftmost."""
        pairs = self._pairs
        possible = [(merged[0], place) for place, pair in enumerate(zip(segmentation, segmentation[1:], strict=False))
                    if (merged := pairs[pair]) is not None]
        possible.sort()
        return [place for _, place in possible]

    def _merged(self, segmentation: Segmentation, place: int) -> Segmentation:
        merged = self._pairs[segmentation[place:place + 2]]
        return segmentation if merged is None else (*segmentation[:place], merged[1], *segmentation[place + 2:])

    def _ids_of(self, segmentation: Segmentation) -> list[int]:
        """None where a symbol is no piece."""
        ids = [self._symbols.ids[symbol] for symbol in segmentation]
        return [] if _NO_PIECE in ids else ids


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
