"""The share of the characters of a text that become subwords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LEAST_COVERAGE = 0.98
"""Minimum of SentencePiece."""


def automatic_coverage(sentences: Iterable[str], size: int) -> float:
    """Return the share of a text that is covered by as many characters as fill half of a vocabulary.

    Args:
        sentences: the text.
        size: number of ids of the vocabulary.
    """
    characters: Counter[str] = Counter()
    for sentence in sentences:
        characters.update(sentence)
    frequent = characters.most_common(size // 2)
    if len(frequent) == len(characters):
        return 1.0
    return max(sum(count for _, count in frequent) / characters.total(), LEAST_COVERAGE)
