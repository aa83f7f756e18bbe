"""Fake translators with their exact word alignment, and functions that inspect segments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from towernmt.documents.segments import Mark, Segment, Shielded
from towernmt.documents.translation import SplitSegments, Translate


class Fake(NamedTuple):
    """A translation with its word alignment."""

    text: str
    alignment: list[tuple[int, int]] | None

    def links(self) -> list[tuple[int, int]] | None:
        return self.alignment


def translate_segments(segments: Sequence[Segment], translate: Translate, language: str | None) -> list[Segment]:
    return SplitSegments(segments, language).translated(translate)


def identity(sentences: Sequence[str]) -> list[Fake]:
    return [Fake(one, [(index, index) for index in range(len(one.split()))]) for one in sentences]


def capitals(sentences: Sequence[str]) -> list[Fake]:
    return [Fake(one.text.upper(), one.alignment) for one in identity(sentences)]


def capital_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments with their text in upper case."""
    return [tuple(part.upper() if isinstance(part, str) else part for part in segment) for segment in segments]


def without_links(sentences: Sequence[str]) -> list[Fake]:
    return [Fake(one, None) for one in sentences]


def permuted(seed: int, change: Callable[[str], str] = str) -> Callable[[Sequence[str]], list[Fake]]:
    """Return a translator that permutes words."""
    def translate(sentences: Sequence[str]) -> list[Fake]:
        found = []
        for sentence in sentences:
            words = sentence.split()
            order = list(range(len(words)))
            random.Random(f"{seed} {sentence}").shuffle(order)
            found.append(Fake(" ".join(change(words[index]) for index in order),
                              sorted((source, target) for target, source in enumerate(order))))
        return found

    return translate


def shown(segment: Segment) -> str:
    """Return a segment as its format would write it."""
    return "".join(part if isinstance(part, str) else str(part.content) for part in segment)


def parents(segment: Segment) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the keys of the pairs around each mark; fail if pairs cross or a mark occurs twice."""
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
    """Return the words within each pair, by key."""
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
