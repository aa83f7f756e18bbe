"""Lexical translation probabilities from sentence pairs alone, by IBM's model 1 and expectation maximisation.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation". Every target piece comes from a source piece of
its sentence, or from none (NULL), each as likely as the other; what is learned is p(target | source).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.lexical.lexicon import Entries

NULL = PAD
"""The source piece of target pieces that translate nothing. No text has this id."""


class _Cells(NamedTuple):
    """The word pairs of a block: for each target piece all source pieces of its sentence, NULL among them.

    Attributes:
        entry: int32 `[cells]`, which entry of the table each is.
        starts: int64 `[target pieces]`, the first cell of each target piece.
        lengths: int32 `[target pieces]`, how many cells it has.
    """

    entry: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]


def learn_model_1(blocks: Iterable[PairBlock], target_size: int, iterations: int = 5,
                  report: Callable[[int, float], None] = lambda iteration, perplexity: None) -> Entries:
    """Learn p(target | source). Four bytes are needed for each pair of words that stand in one sentence pair.

    Args:
        blocks: the sentence pairs.
        target_size: pieces of the target vocabulary.
        iterations: of expectation maximisation, which begins with equal probabilities.
        report: gets the number of each iteration, from 1, and the perplexity of the target before it. That never rises.
    Returns:
        All word pairs that stand in one sentence pair; source is `NULL` for none.
    Raises:
        DataError: there is no pair with words on both sides.
    """
    frequency, found, blocks_of_cells = np.zeros(target_size, np.int64), [], []
    for block in blocks:
        frequency += np.bincount(block.target_ids, minlength=target_size)
        keys, starts, lengths = _word_pairs(block, target_size)
        if len(keys):
            unique, entry = np.unique(keys, return_inverse=True)
            found.append(unique)
            blocks_of_cells.append(_Cells(entry.astype(np.int32), starts, lengths))
    if not found:
        raise DataError("there is no sentence pair to learn from: every one is empty on a side.")
    table = np.unique(np.concatenate(found))
    cells = [_Cells(np.searchsorted(table, unique).astype(np.int32)[block.entry], block.starts, block.lengths)
             for unique, block in zip(found, blocks_of_cells, strict=True)]
    source = table // target_size
    probability = np.full(len(table), 1.0 / target_size)
    for iteration in range(1, iterations + 1):
        expected, likelihood = np.zeros(len(table)), 0.0
        for part in cells:
            given = probability[part.entry]
            total = np.add.reduceat(given, part.starts)
            likelihood += float(np.log(total / part.lengths).sum())
            given /= np.repeat(total, part.lengths)
            expected += np.bincount(part.entry, weights=given, minlength=len(table))
        probability = expected / np.bincount(source, weights=expected)[source]
        report(iteration, float(np.exp(-likelihood / frequency.sum())))
    return Entries(source, table % target_size, probability, frequency)


def _word_pairs(block: PairBlock, target_size: int
                ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """`source * target_size + target` of every cell of a block, and where the cells of each target piece are."""
    with_null = np.insert(block.source_ids.astype(np.int64), block.source_offsets[:-1], NULL)
    sentence = np.repeat(np.arange(len(block)), block.target_lengths)
    lengths = (block.source_lengths + 1)[sentence]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(starts, lengths)
    first = (block.source_offsets[:-1] + np.arange(len(block)))[sentence]      # each sentence before has a NULL
    source = with_null[np.repeat(first, lengths) + within]
    keys = source * target_size + np.repeat(block.target_ids.astype(np.int64), lengths)
    return keys, starts, lengths.astype(np.int32)
