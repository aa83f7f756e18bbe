"""The sentences that a reader should see first: the worst, the best, and those that set two systems most apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Picks:
    """Numbers of sentences, from 0.

    Attributes:
        worst, best: of each system, the lowest and the highest scores first.
        lost, gained: of each system but the first, where it is furthest below and above the first.
    """

    worst: list[list[int]]
    best: list[list[int]]
    lost: list[list[int]]
    gained: list[list[int]]


def pick(scores: Sequence[Sequence[float]], count: int) -> Picks:
    """The sentences that stand out; of equals the first.

    Args:
        scores: of each system, a score of each sentence, more is better.
        count: sentences of each kind, at most.
    """
    baseline, *others = scores
    apart = [[one - two for one, two in zip(other, baseline, strict=True)] for other in others]
    return Picks([_lowest(one, count) for one in scores], [_highest(one, count) for one in scores],
                 [[i for i in _lowest(one, count) if one[i] < 0] for one in apart],
                 [[i for i in _highest(one, count) if one[i] > 0] for one in apart])


def _lowest(values: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: values[i])[:count]


def _highest(values: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]
