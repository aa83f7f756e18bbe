"""Random segmentations of very many words at once, by BPE-dropout or under a unigram model.

**BPE-dropout** (Provilkov et al., 2020, arXiv:1910.13267). A segmentation is a state with its possible merges, the
best first. A step drops each merge with probability `dropout` and applies the best of the other merges, which leads to
the next state; if all merges are dropped, the word is complete. All words take their steps together. A state is
computed when a word first reaches it, and is cached.

**Unigram model** (Kudo, 2018, arXiv:1804.10959). `UnigramSampler` computes the lattice of each word once, and it is
stored in flat arrays. The subwords of all words are then drawn in step: the last subword of each word, then the one
before it, until all words are at their beginning.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.sentencepiece_model import PieceModel, spans
from towernmt.dataflow.vocabulary.subword_sampling import UnigramSampler

_UNKNOWN_STATE, _NO_PIECE = -1, -1
_ALL_MERGES = 1 << 62  # number of dropped merges that stands for all
_STATE_BYTES, _MERGE_BYTES = 350, 14
_LONGEST_CACHED = 32  # symbols; longer words rarely occur again, and have many states

Segmentation = tuple[int, ...]
"""The numbers of the symbols of a segmentation."""


class BatchBpeDropout:
    """A sampler of segmentations by BPE-dropout, a `WordSampler`.

    Args:
        rank: returns the rank of the merge of two symbols, the lowest being the best, or None if they do not merge.
        symbols: returns the initial symbols of a word, or None for a word that has to keep its segmentation.
        id_of: returns the id of a symbol, or None if it is not in the vocabulary. A word whose sample contains such a
            symbol keeps its segmentation.
        dropout: probability of dropping a merge, from 0; more than 1 counts as 1.
    """

    def __init__(self, rank: Callable[[str, str], float | None], symbols: Callable[[str], Sequence[str] | None],
                 id_of: Callable[[str], int | None], dropout: float) -> None:
        self._initial_symbols = symbols
        self._scale = None if dropout >= 1 else 1 / math.log(dropout) if dropout > 0 else 0.0
        self._symbols = _Symbols(id_of)
        self._pairs = _Pairs(self._symbols, rank)
        self._states: dict[Segmentation, int] = {}
        self._segmentations: list[Segmentation] = []
        self._merges, self._first_merges = array("i"), array("q")  # by state: number of merges, index of the first
        # By merge: the state before it, the index of its first symbol in that state, and the state after it.
        self._parents, self._positions, self._children = array("i"), array("i"), array("i")
        self._lengths, self._first_ids, self._counts = array("i"), array("q"), array("i")  # by state
        self._ids = array("i")

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the cached states in bytes."""
        return _STATE_BYTES * len(self._segmentations) + _MERGE_BYTES * len(self._children)

    def add(self, word: str) -> int | None:
        """Return the number of a word; see `WordSampler.add`."""
        symbols = self._initial_symbols(word)
        return None if symbols is None else self._state(tuple(map(self._symbols.number, symbols)))

    def uniforms_per_word(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the maximum number of random numbers for each word; see `WordSampler.uniforms_per_word`."""
        return np.array(self._lengths)[numbers].astype(np.int64)

    def draw(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
             ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Sample a segmentation of each word; see `WordSampler.draw`."""
        lengths = self.uniforms_per_word(numbers)
        short, long = np.flatnonzero(lengths <= _LONGEST_CACHED), np.flatnonzero(lengths > _LONGEST_CACHED)
        counts, first_ids, ids = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64), array("i")
        for word in long.tolist():
            begin = int(first[word])
            sampled = self._sample_long_word(numbers[word], self._dropped_merges(uniform[begin:begin + lengths[word]]))
            first_ids[word], counts[word] = len(ids), len(sampled)
            ids.extend(sampled)
        states = self._final_states(numbers[short], uniform, first[short])
        first_ids[short], counts[short] = np.array(self._first_ids)[states] + len(ids), np.array(self._counts)[states]
        return np.concatenate([np.array(ids), np.array(self._ids)])[spans(first_ids, counts)], counts

    def _final_states(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
                      ) -> NDArray[np.int64]:
        """Return int64 `[words]`: the states in which the words are complete."""
        states, active = numbers.copy(), np.arange(len(numbers))
        counts, first_merges, children = self._tables()
        step = 0
        while len(active):
            dropped, current = self._dropped_merges(uniform[first[active] + step]), states[active]
            unfinished = dropped < counts[current]
            active, merges = active[unfinished], first_merges[current[unfinished]] + dropped[unfinished]
            unknown = np.unique(merges[children[merges] == _UNKNOWN_STATE])
            if len(unknown):
                self._add_states(unknown.tolist())
                counts, first_merges, children = self._tables()
            states[active] = children[merges]
            step += 1
        return states

    def _dropped_merges(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of best merges that a step drops: floor(log(1 - u) / log(dropout))."""
        if self._scale is None:
            return np.full(len(uniform), _ALL_MERGES)
        return (self._scale * np.log1p(-uniform)).astype(np.int64)

    def _sample_long_word(self, state: int, dropped_merges: NDArray[np.int64]) -> list[int]:
        """Return the ids of a long word without caching its states.

        Args:
            state: initial state of the word.
            dropped_merges: int64 `[steps]`, number of merges that each step drops.
        """
        segmentation = self._segmentations[state]
        for dropped in dropped_merges.tolist():
            positions = self._merge_positions(segmentation)
            if dropped >= len(positions):
                break
            segmentation = self._merge(segmentation, positions[dropped])
        return self._segmentation_ids(segmentation)

    def _tables(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Return arrays: by state the number of its merges and the index of the first; by merge the state after it."""
        return np.array(self._merges), np.array(self._first_merges), np.array(self._children)

    def _add_states(self, merges: list[int]) -> None:
        """Add the states after merges."""
        for merge in merges:
            before = self._segmentations[self._parents[merge]]
            self._children[merge] = self._state(self._merge(before, self._positions[merge]))

    def _state(self, segmentation: Segmentation) -> int:
        number = self._states.get(segmentation)
        if number is None:
            number = self._states[segmentation] = len(self._segmentations)
            self._segmentations.append(segmentation)
            self._lengths.append(len(segmentation))
            positions = self._merge_positions(segmentation)
            self._merges.append(len(positions))
            self._first_merges.append(len(self._children))
            self._parents.extend([number] * len(positions))
            self._positions.extend(positions)
            self._children.extend([_UNKNOWN_STATE] * len(positions))
            ids = self._segmentation_ids(segmentation)
            self._first_ids.append(len(self._ids))
            self._counts.append(len(ids))
            self._ids.extend(ids)
        return number

    def _merge_positions(self, segmentation: Segmentation) -> list[int]:
        """Return the positions of the possible merges, the best first; among equally good merges the leftmost first."""
        pairs = self._pairs
        possible = [(merged[0], position)
                    for position, pair in enumerate(zip(segmentation, segmentation[1:], strict=False))
                    if (merged := pairs[pair]) is not None]
        possible.sort()
        return [position for _, position in possible]

    def _merge(self, segmentation: Segmentation, position: int) -> Segmentation:
        merged = self._pairs[segmentation[position:position + 2]]
        return segmentation if merged is None else (*segmentation[:position], merged[1], *segmentation[position + 2:])

    def _segmentation_ids(self, segmentation: Segmentation) -> list[int]:
        """Return the ids of the symbols; empty if a symbol is not in the vocabulary."""
        ids = [self._symbols.ids[symbol] for symbol in segmentation]
        return [] if _NO_PIECE in ids else ids


class _Symbols:
    """Symbols, numbered in the order of their first use.

    Attributes:
        names: symbols by number.
        ids: ids by number; -1 if the symbol is not in the vocabulary.
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
    """A cache of (rank, merged symbol) by pairs of symbols; None if the symbols do not merge."""

    def __init__(self, symbols: _Symbols, rank: Callable[[str, str], float | None]) -> None:
        super().__init__()
        self._symbols, self._rank = symbols, rank

    def __missing__(self, pair: Segmentation) -> tuple[float, int] | None:
        left_symbol, right_symbol = (self._symbols.names[symbol] for symbol in pair)
        rank = self._rank(left_symbol, right_symbol)
        merged = self[pair] = None if rank is None else (rank, self._symbols.number(left_symbol + right_symbol))
        return merged


_BITS = 32  # of a probability; the 31 bits above contain the number of its node


class BatchUnigramSampler:
    """A sampler of segmentations under a unigram model, a `WordSampler`.

    Args:
        model: a unigram model.
        alpha: exponent of the probabilities, from 0.
        id_of: returns the id of a subword.
    """

    def __init__(self, model: PieceModel, alpha: float, id_of: Callable[[str], int]) -> None:
        self._scores, self._sampler, self._id_of = model.scores, UnigramSampler(model, alpha), id_of
        self._lengths, self._first_nodes = array("i"), array("q")  # by word: characters, node of its first prefix
        self._nodes = 0
        self._bounds = array("q")  # by arc: the number of its node, followed by its cumulative probability
        self._widths, self._ids = array("i"), array("i")  # by arc: number of characters and id of its subword

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the lattices in bytes."""
        return 16 * len(self._bounds) + 12 * len(self._lengths)

    def add(self, word: str) -> int | None:
        """Return the number of a word, or None if the model lacks one of its characters; see `WordSampler.add`."""
        if any(character not in self._scores for character in word):
            return None
        self._first_nodes.append(self._nodes)
        self._lengths.append(len(word))
        for bounds, choices in self._sampler.lattice(word)[1:]:
            node = self._nodes << _BITS
            self._bounds.extend([node + int(bound * 2.0 ** _BITS) for bound in bounds])
            self._bounds.append(node + (1 << _BITS))  # above all random numbers, so the search finds at least this arc
            self._widths.extend(map(len, choices))
            self._ids.extend(map(self._id_of, choices))
            self._nodes += 1
        return len(self._lengths) - 1

    def uniforms_per_word(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the maximum number of random numbers for each word; see `WordSampler.uniforms_per_word`."""
        return np.array(self._lengths)[numbers].astype(np.int64)

    def draw(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
             ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Sample a segmentation of each word; see `WordSampler.draw`."""
        bounds, widths = np.array(self._bounds), np.array(self._widths)
        fractions = (uniform * 2.0 ** _BITS).astype(np.int64)
        # Equal words are adjacent, so that consecutive searches access the same memory.
        active = np.argsort(numbers, kind="stable")
        ends = self.uniforms_per_word(numbers[active])
        nodes, uniform_begins = np.array(self._first_nodes)[numbers] - 1, first - 1  # for a prefix of 0 characters
        counts = np.zeros(len(numbers), np.int64)
        steps = []
        while len(active):
            arcs = np.searchsorted(bounds, (nodes[active] + ends << _BITS) + fractions[uniform_begins[active] + ends],
                                   side="right")
            steps.append((active, arcs))
            counts[active] += 1
            ends = ends - widths[arcs]
            unfinished = ends > 0
            active, ends = active[unfinished], ends[unfinished]
        sampled = np.empty(int(counts.sum()), np.int32)
        last_indices, ids = np.cumsum(counts) - 1, np.array(self._ids)
        for step, (active, arcs) in enumerate(steps):
            sampled[last_indices[active] - step] = ids[arcs]
        return sampled, counts
