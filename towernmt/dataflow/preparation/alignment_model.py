"""Alignment models: which source token each target token of a sentence pair translates, learned from the pairs.

`learn_model_1` is IBM model 1 (Brown et al. 1993), for lexical tables. `AlignmentModel` adds a prior that prefers the
diagonal, as fast_align does (Dyer, Chahuneau & Smith 2013); a preparation learns it in both directions to align its
pairs. Both are estimated by expectation maximisation over all pairs of tokens in a sentence pair, in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.shards import PairBlock, reversed_block
from towernmt.dataflow.vocabulary.base import PAD

NULL = PAD
"""Source token of target tokens without a source word. No text contains this id."""


class Entries(NamedTuple):
    """Probabilities of distinct pairs of tokens, in any order.

    Attributes:
        source, target: ids `[entries]`.
        probability: `[entries]`, p(target | source).
        frequency: `[target vocabulary]`, frequency of each target token, in any unit.
    """

    source: NDArray[np.integer]
    target: NDArray[np.integer]
    probability: NDArray[np.floating]
    frequency: NDArray[Any]


class ExpectedCounts(NamedTuple):
    """Expected numbers of translations between distinct pairs of tokens, in any order.

    Attributes:
        source, target: ids `[entries]`.
        expected: float64 `[entries]`, how often the target token translates the source token.
        frequency: `[target vocabulary]`, frequency of each target token in the counted pairs.
    """

    source: NDArray[np.integer]
    target: NDArray[np.integer]
    expected: NDArray[np.float64]
    frequency: NDArray[np.int64]

    def keys(self, target_size: int) -> NDArray[np.int64]:
        """Return `source * target_size + target` of each entry."""
        return self.source.astype(np.int64) * target_size + self.target

    def entries(self) -> Entries:
        """Return the probabilities of the pairs of tokens."""
        total = np.bincount(self.source, weights=self.expected)
        return Entries(self.source, self.target, self.expected / total[self.source], self.frequency)


class _Cells(NamedTuple):
    """Pairs of tokens in a block: each target token with all source tokens of its sentence; the first one is NULL.

    Attributes:
        entry: int32 `[cells]`, entry of the table for each pair.
        starts: int64 `[target tokens]`, first cell of each target token.
        lengths: int32 `[target tokens]`, number of cells of each target token.
        position: float32 `[target tokens]`, relative position of each target token in its sentence, between 0 and 1.
    """

    entry: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    position: NDArray[np.float32]


class _CellTable(NamedTuple):
    """The cells of all blocks, and the distinct pairs of tokens `source * target_size + target`, sorted."""

    keys: NDArray[np.int64]
    cells: list[_Cells]
    frequency: NDArray[np.int64]


def learn_model_1(blocks: Iterable[PairBlock], target_size: int, iterations: int = 5,
                  report: Callable[[int, float], None] = lambda iteration, perplexity: None) -> Entries:
    """Learn p(target | source) by IBM model 1. It needs four bytes of memory for each pair of words in a sentence pair.

    Args:
        blocks: the sentence pairs.
        target_size: size of the target vocabulary.
        iterations: number of iterations of expectation maximisation, which begins with equal probabilities.
        report: called with the number of each iteration, from 1, and the perplexity of the target before it, which
            never rises.

    Returns:
        the pairs of words that occur in the same sentence pair; `NULL` as source for no word.

    Raises:
        DataError: no pair has words on both sides.
    """
    return count_by_model_1(blocks, target_size, iterations, report).entries()


def count_by_model_1(blocks: Iterable[PairBlock], target_size: int, iterations: int = 5,
                     report: Callable[[int, float], None] = lambda iteration, perplexity: None,
                     earlier: ExpectedCounts | None = None) -> ExpectedCounts:
    """Return the expected counts of the last iteration of IBM model 1; see `learn_model_1`.

    Args:
        blocks: the sentence pairs.
        target_size: size of the target vocabulary.
        iterations: number of iterations.
        report: see `learn_model_1`.
        earlier: counts of other sentence pairs, which are added unchanged in each iteration. This takes much less time
            than learning from these pairs again. None for no counts.

    Raises:
        DataError: no pair has words on both sides, and `earlier` is None.
    """
    table = _index(blocks, target_size, [] if earlier is None else [earlier.keys(target_size)])
    source = table.keys // target_size
    known = np.zeros(len(source))
    if earlier is not None:
        known[np.searchsorted(table.keys, earlier.keys(target_size))] = earlier.expected
    expected, probability = known, np.full(len(source), 1.0 / target_size)
    for iteration in range(1, iterations + 1):
        expected, likelihood = known.copy(), 0.0
        for part in table.cells:
            cell_probability = probability[part.entry]
            total = np.add.reduceat(cell_probability, part.starts)
            likelihood += float(np.log(total / part.lengths).sum())
            cell_probability /= np.repeat(total, part.lengths)
            expected += np.bincount(part.entry, weights=cell_probability, minlength=len(source))
        probability = expected / np.bincount(source, weights=expected)[source]
        report(iteration, float(np.exp(-likelihood / max(table.frequency.sum(), 1))))
    return ExpectedCounts(source, table.keys % target_size, expected, table.frequency)


def _index(blocks: Iterable[PairBlock], target_size: int, further_keys: Sequence[NDArray[np.int64]] = ()) -> _CellTable:
    """Return the cells of blocks.

    Args:
        blocks: the sentence pairs.
        target_size: size of the target vocabulary.
        further_keys: further pairs of tokens of the table.

    Raises:
        DataError: the table would be empty.
    """
    frequency, cell_lists = np.zeros(target_size, np.int64), []
    keys_of_cells: list[NDArray[np.int64]] = []
    for block in blocks:
        frequency += np.bincount(block.target_ids, minlength=target_size)
        keys, cells = _cells(block, target_size)
        if len(keys):
            unique, entry = np.unique(keys, return_inverse=True)
            keys_of_cells.append(unique)
            cell_lists.append(cells._replace(entry=entry.astype(np.int32)))
    key_lists = [*further_keys, *keys_of_cells]
    if not key_lists:
        raise DataError("no sentence pair can be used: one side of each pair is empty.")
    table = np.unique(np.concatenate(key_lists))
    return _CellTable(table, [part._replace(entry=np.searchsorted(table, unique).astype(np.int32)[part.entry])
                              for unique, part in zip(keys_of_cells, cell_lists, strict=True)], frequency)


def _cells(block: PairBlock, target_size: int) -> tuple[NDArray[np.int64], _Cells]:
    """Return `source * target_size + target` of each cell of a block, and the cells, without their entries."""
    with_null = np.insert(block.source_ids.astype(np.int64), block.source_offsets[:-1], NULL)
    sentence = np.repeat(np.arange(len(block)), block.target_lengths)
    lengths = (block.source_lengths + 1)[sentence]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(starts, lengths)
    first = (block.source_offsets[:-1] + np.arange(len(block)))[sentence]      # each previous sentence has a NULL
    source = with_null[np.repeat(first, lengths) + within]
    keys = source * target_size + np.repeat(block.target_ids.astype(np.int64), lengths)
    position = (np.arange(len(sentence)) - block.target_offsets[sentence] + 0.5) / block.target_lengths[sentence]
    return keys, _Cells(np.zeros(0, np.int32), starts, lengths.astype(np.int32), position.astype(np.float32))


NULL_SHARE = 0.08
"""Prior probability that a target token translates no source token (as in fast_align)."""
CONCENTRATION = 0.01
"""Concentration of the Dirichlet prior over the translations of a source token; below 1 it prefers few of them."""
_FIRST_TENSION, _TENSIONS, _RATE, _MEASURED = 4.0, (0.1, 14.0), 20.0, 200_000
_UNSEEN = 1e-9


@dataclass(frozen=True)
class AlignmentModel:
    """p(target token, source token | sentence) = prior of the distance from the diagonal * p(target | source).

    Attributes:
        keys: int64 `[entries]`, `source * target_size + target` of each pair of tokens that occurred, sorted.
        probability: float32 `[entries]`, p(target | source).
        tension: how strongly the prior prefers the diagonal: it is proportional to exp(-tension * distance).
        target_size: size of the target vocabulary.
    """

    keys: NDArray[np.int64]
    probability: NDArray[np.float32]
    tension: float
    target_size: int

    @classmethod
    def learn(cls, blocks: Iterable[PairBlock], target_size: int, iterations: int = 5) -> AlignmentModel:
        """Learn a model by variational Bayes, with the tension that explains the expected alignments best.

        It needs four bytes of memory for each pair of tokens in a sentence pair.

        Args:
            blocks: the sentence pairs.
            target_size: size of the target vocabulary.
            iterations: number of iterations, from equal probabilities.

        Raises:
            DataError: no pair has words on both sides.
        """
        table = _index(blocks, target_size)
        source, tension = table.keys // target_size, _FIRST_TENSION
        entries = np.maximum(np.bincount(source), 1)
        probability = np.full(len(source), 1.0 / target_size)
        for _ in range(iterations):
            expected = np.zeros(len(source))
            moved = aligned = 0.0
            tokens = 0
            for part in table.cells:
                distance = _distances(part)
                joint = probability[part.entry] * _prior(distance, part, tension)
                joint /= np.repeat(np.add.reduceat(joint, part.starts), part.lengths)
                expected += np.bincount(part.entry, weights=joint, minlength=len(source))
                if tokens < _MEASURED:
                    joint[part.starts] = 0.0
                    moved, aligned = moved + float(joint @ distance), aligned + float(joint.sum())
                    tokens += len(part.starts)
            tension = _best_tension(table.cells, moved / max(aligned, 1e-30), tension)
            total = np.bincount(source, weights=expected) + CONCENTRATION * entries
            probability = np.exp(_digamma(expected + CONCENTRATION) - _digamma(total)[source])
        return cls(table.keys, probability.astype(np.float32), tension, target_size)

    def best_sources(self, block: PairBlock) -> NDArray[np.int64]:
        """Return the most probable source token of each target token, by its index in its sentence; -1 for none.

        Returns:
            int64 `[target tokens]`.
        """
        keys, cells = _cells(block, self.target_size)
        if not len(keys):
            return np.full(len(block.target_ids), -1, np.int64)
        entry = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        probability = np.where(self.keys[entry] == keys, self.probability[entry], _UNSEEN)
        joint = probability * _prior(_distances(cells), cells, self.tension)
        maximum = np.repeat(np.maximum.reduceat(joint, cells.starts), cells.lengths)
        # The first of equal cells: a target token has at least one, so the order of the cells finds it.
        maxima = np.flatnonzero(joint == maximum)
        first = maxima[np.searchsorted(maxima, cells.starts)]
        return first - cells.starts - 1

    def save(self, path: Path) -> None:
        """Write the model to a new file."""
        with open(path, "wb") as file:
            np.savez(file, keys=self.keys, probability=self.probability, tension=self.tension,
                     target_size=self.target_size)

    @classmethod
    def load(cls, path: Path) -> AlignmentModel:
        """Read the file of `save`."""
        with np.load(path) as arrays:
            return cls(arrays["keys"], arrays["probability"], float(arrays["tension"]), int(arrays["target_size"]))


def _distances(cells: _Cells) -> NDArray[np.float32]:
    """Return the distance of each cell from the diagonal, between 0 and 1; the value for NULL has no meaning."""
    within = np.arange(cells.starts[-1] + cells.lengths[-1]) - np.repeat(cells.starts, cells.lengths)
    source = (within - 0.5) / np.repeat(np.maximum(cells.lengths - 1, 1), cells.lengths)
    return np.abs(source - np.repeat(cells.position, cells.lengths)).astype(np.float32)


def _prior(distance: NDArray[np.float32], cells: _Cells, tension: float) -> NDArray[np.floating]:
    """Return the prior of each cell, which sums to 1 over the cells of a target token."""
    weight = np.exp(distance * np.float32(-tension))
    weight[cells.starts] = 0.0
    total = np.add.reduceat(weight, cells.starts)
    weight *= np.repeat((1.0 - NULL_SHARE) / np.maximum(total, np.float32(1e-30)), cells.lengths)
    weight[cells.starts] = NULL_SHARE
    return weight


def _best_tension(parts: list[_Cells], expected: float, tension: float) -> float:
    """Return the tension at which the prior has the expected distance, by eight steps along the gradient."""
    measured, tokens = [], 0
    for part in parts:
        measured.append((part, _distances(part)))
        tokens += len(part.starts)
        if tokens >= _MEASURED:
            break
    for _ in range(8):
        distance = 0.0
        for part, distances in measured:
            prior = _prior(distances, part, tension)
            prior[part.starts] = 0.0
            distance += float(prior @ distances) / (1.0 - NULL_SHARE)
        tension = min(max(tension + _RATE * (distance / tokens - expected), _TENSIONS[0]), _TENSIONS[1])
    return tension


def _digamma(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the derivative of log gamma at positive numbers, from its asymptotic series above 6."""
    result = np.zeros_like(x)
    for _ in range(6):
        small = x < 6.0
        result = np.where(small, result - 1.0 / x, result)
        x = np.where(small, x + 1.0, x)
    square = 1.0 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return result + np.log(x) - 0.5 / x - series


def aligned_pairs(forward: AlignmentModel, backward: AlignmentModel, block: PairBlock
                  ) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return the links on which both directions agree.

    Args:
        forward: model of the target given the source.
        backward: model of the source given the target.
        block: sentence pairs.

    Returns:
        links uint16 `[2, links]` as in `PairBlock`, ordered by target token, and int32 `[pairs]`, their number in each
        pair.
    """
    source = forward.best_sources(block)
    target = backward.best_sources(reversed_block(block))
    pair = np.repeat(np.arange(len(block)), block.target_lengths)
    target_index = np.arange(len(source)) - block.target_offsets[pair]
    linked = np.flatnonzero(source >= 0)
    linked = linked[target[block.source_offsets[pair[linked]] + source[linked]] == target_index[linked]]
    links = np.stack([source[linked], target_index[linked]]).astype(np.uint16)
    return links, np.bincount(pair[linked], minlength=len(block)).astype(np.int32)


def count_cells(source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer]) -> int:
    """Return the number of pairs of tokens that learning from sentence pairs of these lengths keeps in memory."""
    return int(((source_lengths.astype(np.int64) + 1) * target_lengths.astype(np.int64)).sum())
