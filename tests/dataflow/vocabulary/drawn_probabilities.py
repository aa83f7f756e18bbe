"""Probabilities of all segmentations of a word by enumeration, and a test of observed frequencies against them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise, product


def segmentations(word: str) -> list[list[str]]:
    """Return all segmentations, in subwords of any length."""
    cuts = product((False, True), repeat=len(word) - 1)
    ends = [[0, *(end for end, cut in enumerate(choice, 1) if cut), len(word)] for choice in cuts]
    return [[word[begin:end] for begin, end in pairwise(ends_of_pieces)] for ends_of_pieces in ends]


def dropout_probabilities(symbols: Sequence[str], rank: Callable[[str, str], float | None], dropout: float
                          ) -> dict[tuple[str, ...], float]:
    """Return probabilities by algorithm 1 of Provilkov et al., with every subset of the merges that a step may drop.

    Args:
        symbols: initial symbols of the word.
        rank: returns the rank of the merge of two symbols, the lowest being the best; None if they do not merge.
    """
    finished: Counter[tuple[str, ...]] = Counter()
    open_ = {tuple(symbols): 1.0}
    while open_:
        state, share = open_.popitem()
        ranks = [(merge_rank, index) for index, pair in enumerate(pairwise(state))
                 if (merge_rank := rank(*pair)) is not None]
        for choice in product((False, True), repeat=len(ranks)):
            share_of_choice = share * math.prod(1 - dropout if keep else dropout for keep in choice)
            possible = [ranked for ranked, keep in zip(ranks, choice, strict=True) if keep]
            if not possible:
                finished[state] += share_of_choice
                continue
            index = min(possible)[1]
            merged = (*state[:index], state[index] + state[index + 1], *state[index + 2:])
            open_[merged] = open_.get(merged, 0.0) + share_of_choice
    return finished


def rank_by(scores: dict[str, float]) -> Callable[[str, str], float | None]:
    """Return the rank of a merge of two pieces: better for a higher score of the merged piece."""
    return lambda first, second: -scores[first + second] if first + second in scores else None


def chi_square(counts: Counter[tuple[str, ...]], shares: dict[tuple[str, ...], float]) -> float:
    """Return how many standard deviations chi-square is above its mean; rare values are merged."""
    draws = sum(counts.values())
    assert set(counts) <= set(shares)
    cells = [(counts[key], draws * share) for key, share in shares.items() if draws * share >= 5]
    seldom = [(counts[key], draws * share) for key, share in shares.items() if draws * share < 5]
    cells += [(sum(count for count, _ in seldom), sum(share for _, share in seldom))] if seldom else []
    value = sum((count - expected) ** 2 / expected for count, expected in cells if expected > 1e-9)
    return (value - len(cells) + 1) / math.sqrt(2 * max(1, len(cells) - 1))
