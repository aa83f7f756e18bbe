"""The n-grams that sequences share, counted for all pairs of them at once.

How often two sequences share an n-gram is the smaller of its two counts. Written in unary, with a feature for the
first, the second, ... time that the n-gram comes, that is a product of two vectors of zeros and ones; so the counts of
all pairs are one matrix product for each order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_ELEMENTS = 1 << 23
"""Of a matrix of features, at most."""


class Grams(NamedTuple):
    """All n-grams of one order in some sequences, one entry for each time that one comes.

    Attributes:
        owner: int64 `[entries]`, the number of the sequence.
        gram: int64 `[entries]`, which n-gram: equal ones have equal numbers from 0.
    """

    owner: np.ndarray
    gram: np.ndarray

    def totals(self, sequences: int) -> np.ndarray:
        """How many each sequence has, int64 `[sequences]`."""
        return np.bincount(self.owner, minlength=sequences)


def grams_by_order(sequences: Sequence[np.ndarray], orders: int) -> Iterator[Grams]:
    """The n-grams of order 1, 2, ... `orders`.

    Args:
        sequences: integers `[length]` each, of characters or words.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    if not lengths.sum():
        empty = np.zeros(0, np.int64)
        yield from (Grams(empty, empty) for _ in range(orders))
        return
    symbols, code = np.unique(np.concatenate([np.asarray(s, np.int64) for s in sequences]), return_inverse=True)
    owner = np.repeat(np.arange(len(sequences)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(code))     # symbols from here to the sequence's end
    start, gram = np.arange(len(code)), code
    for order in range(1, orders + 1):
        if order > 1:
            longer = left[start] >= order
            start = start[longer]
            key = gram[longer] * len(symbols) + code[start + order - 1]
            gram = np.unique(key, return_inverse=True)[1]
        yield Grams(owner[start], gram)


def matches_of_pairs(grams: Grams, sequences: int) -> np.ndarray:
    """How many n-grams each two sequences share, int64 `[sequences, sequences]`; of one with itself, all it has."""
    owner, feature = _unary(grams, sequences)
    # What one sequence alone has is counted on the diagonal.
    shared = np.bincount(feature)[feature] > 1 if len(feature) else np.zeros(0, bool)
    feature, owner = np.unique(feature[shared], return_inverse=True)[1], owner[shared]
    by_feature = np.argsort(feature, kind="stable")
    feature, owner = feature[by_feature], owner[by_feature]
    found = np.zeros([sequences, sequences], np.int64)
    block = max(1, _ELEMENTS // max(sequences, 1))
    for first in range(0, int(feature[-1]) + 1 if len(feature) else 0, block):
        part = slice(*np.searchsorted(feature, [first, first + block]))
        present = np.zeros([sequences, block if first + block <= feature[-1] else int(feature[-1]) + 1 - first],
                           np.float32)
        present[owner[part], feature[part] - first] = 1.0
        found += np.rint(present @ present.T).astype(np.int64)     # float32 has whole numbers to 16 million
    np.fill_diagonal(found, grams.totals(sequences))
    return found


def matches_with_mean(grams: Grams, weights: np.ndarray) -> np.ndarray:
    """What each sequence shares with the weighted mean of all sequences' counts, float64 `[sequences]`.

    Args:
        weights: float64 `[sequences]`, together 1.
    """
    mean = np.bincount(grams.gram, weights[grams.owner])
    key, count = np.unique(grams.owner * len(mean) + grams.gram, return_counts=True)
    owner, gram = np.divmod(key, max(len(mean), 1))
    return np.bincount(owner, np.minimum(count, mean[gram]), minlength=len(weights))


def _unary(grams: Grams, sequences: int) -> tuple[np.ndarray, np.ndarray]:
    """Owner and feature of each entry; a feature is an n-gram and how many times its owner had it before."""
    key = grams.gram * sequences + grams.owner
    order = np.argsort(key, kind="stable")
    key = key[order]
    place = np.arange(len(key))
    begins = np.ones(len(key), bool)
    begins[1:] = key[1:] != key[:-1]
    times = place - np.maximum.accumulate(np.where(begins, place, 0)) if len(key) else place
    gram, owner = np.divmod(key, max(sequences, 1))
    return owner, np.unique(gram * (times.max(initial=0) + 1) + times, return_inverse=True)[1]
