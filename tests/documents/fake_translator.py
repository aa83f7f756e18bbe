"""Translators that give their true links, and what tests ask of segments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from towernmt.documents.segments import Mark, Segment, Shielded


class Fake(NamedTuple):
    """A translation and its links."""

    text: str
    given: list[tuple[int, int]] | None

    def links(self) -> list[tuple[int, int]] | None:
        return self.given


def identity(sentences: Sequence[str]) -> list[Fake]:
    return [Fake(one, [(place, place) for place in range(len(one.split()))]) for one in sentences]


def capitals(sentences: Sequence[str]) -> list[Fake]:
    return [Fake(one.text.upper(), one.given) for one in identity(sentences)]


def without_links(sentences: Sequence[str]) -> list[Fake]:
    return [Fake(one, None) for one in sentences]


def permuted(seed: int, change: Callable[[str], str] = str) -> Callable[[Sequence[str]], list[Fake]]:
    """A translator that permutes words."""
    def translate(sentences: Sequence[str]) -> list[Fake]:
        found = []
        for sentence in sentences:
            words = sentence.split()
            order = list(range(len(words)))
            random.Random(f"{seed} {sentence}").shuffle(order)
            found.append(Fake(" ".join(change(words[place]) for place in order),
                              sorted((source, target) for target, source in enumerate(order))))
        return found

    return translate


def shown(segment: Segment) -> str:
    """A segment as its format would write it."""
    return "".join(part if isinstance(part, str) else str(part.content) for part in segment)


def parents(segment: Segment) -> dict[tuple[str, int], tuple[int, ...]]:
    """Of each mark the keys of the pairs around it; fails if they are not well nested, or one comes twice."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    path: list[int] = []
    for part in segment:
        if not isinstance(part, Mark):
            continue
        if part.kind == "close":
            assert path.pop() == part.key
        assert (part.kind, part.key) not in found
        found[part.kind, part.key] = tuple(path)
        if part.kind == "open":
            path.append(part.key)
    assert not path
    return found


def words_inside(segment: Segment) -> dict[int, Counter[str]]:
    """The words within each pair, by its key."""
    found: dict[int, Counter[str]] = {}
    path: list[int] = []
    for part in segment:
        if isinstance(part, Mark):
            if part.kind == "open":
                path.append(part.key)
                found[part.key] = Counter()
            elif part.kind == "close":
                path.remove(part.key)
        else:
            for key in path:
                found[key].update([part.text] if isinstance(part, Shielded) else part.split())
    return found
