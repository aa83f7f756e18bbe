"""Word alignments as links, and as text in Pharaoh's form (`0-0 1-2`: source word - target word, from 0)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from towernmt.dataflow.text.alignment import Link


def links_of(weights: np.ndarray, threshold: float | None = None) -> list[Link]:
    """The links that weights of words make.

    Args:
        weights: float `[target words, source words]`, such as `word_weights` gives.
        threshold: None links each target word to the source word of the largest weight (the first of equal ones), or
            to none where all its weights are 0; a number links all words whose weight is at least that.
    Returns:
        (source word, target word), sorted.
    """
    if not weights.size:
        return []
    if threshold is not None:
        target, source = np.nonzero((weights >= threshold) & (weights > 0))
    else:
        target = np.flatnonzero(weights.max(axis=1) > 0)
        source = weights[target].argmax(axis=1)
    return sorted(zip(source.tolist(), target.tolist(), strict=True))


def pharaoh(links: Iterable[Link]) -> str:
    """The links as text, in order of the source words."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def swapped(links: Iterable[Link]) -> list[Link]:
    """The links seen from the other language, sorted."""
    return sorted((target, source) for source, target in links)
