"""Probabilities of all segmentations of a word by enumeration, and a test of observed frequencies against them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise, product


def segmentations(word: str) -> list[list[str]]:
    """Return all segmentations, in subwords of any length."""
    cuts = product((False, True), repeat=len(word) - 1)
    ends = [[0, *(place for place, cut in enumerate(choice, 1) if cut), len(word)] for choice in cuts]
    return [[word[begin:end] for begin, end in pairwise(places)] for places in ends]


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
        now, share = open_.popitem()
        ranks = [(found, place) for place, pair in enumerate(pairwise(now)) if (found := rank(*pair)) is not None]
        for kept in product((False, True), repeat=len(ranks)):
            part = share * math.prod(1 - dropout if one else dropout for one in kept)
            left = [one for one, keep in zip(ranks, kept, strict=True) if keep]
            if not left:
                finished[now] += part
                continue
            place = min(left)[1]
            merged = (*now[:place], now[place] + now[place + 1], *now[place + 2:])
            open_[merged] = open_.get(merged, 0.0) + part
    return finished


def rank_by(scores: dict[str, float]) -> Callable[[str, str], float | None]:
    """Return the rank of a merge of two pieces: better for a higher score of the merged piece."""
    return lambda left, right: -scores[left + right] if left + right in scores else None


def chi_square(counts: Counter[tuple[str, ...]], shares: dict[tuple[str, ...], float]) -> float:
    """Return how many standard deviations chi-square is above its mean; rare values are merged."""
    draws = sum(counts.values())
    assert set(counts) <= set(shares)
    cells = [(counts[key], draws * share) for key, share in shares.items() if draws * share >= 5]
    seldom = [(counts[key], draws * share) for key, share in shares.items() if draws * share < 5]
    cells += [(sum(one for one, _ in seldom), sum(two for _, two in seldom))] if seldom else []
    value = sum((found - expected) ** 2 / expected for found, expected in cells if expected > 1e-9)
    return (value - len(cells) + 1) / math.sqrt(2 * max(1, len(cells) - 1))
