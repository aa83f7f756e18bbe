"""Sources in memory, which count the requests and can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.source import Pair, Source


@dataclass(eq=False)
class MemorySource(Source):
    """A source of the pairs of a list, which may grow between passes.

    Attributes:
        fails_at: number of the pair at which reading fails, or None.
        read_from: the cursors at which reading began.
        pairs_read: total number of pairs that were read.
    """

    name: str
    pairs: list[Pair]
    fails_at: int | None = None
    error: Exception = field(default_factory=lambda: DataError("memory: the source has failed. Fix it."))
    read_from: list[Any] = field(default_factory=list)
    pairs_read: int = 0

    def begin(self) -> Any:
        return [0, len(self.pairs)]

    def read(self, cursor: Any) -> Iterator[tuple[Any, Pair]]:
        position, bound = cursor
        self.read_from.append(list(cursor))
        for index in range(position, bound):
            if index == self.fails_at:
                raise self.error
            self.pairs_read += 1
            yield [index + 1, bound], self.pairs[index]

    def count(self) -> int:
        return len(self.pairs)


@pytest.fixture(scope="session")
def memory_source() -> Any:
    """`memory_source("a", 5)`: five pairs ("a0 ...", "A0 ..."), with sides of different lengths."""

    def make(name: str, pairs: int, **options: Any) -> MemorySource:
        return MemorySource(name, [numbered(name, index) for index in range(pairs)], **options)

    return make


def numbered(name: str, index: int) -> Pair:
    """Return a pair with unique words and varying lengths."""
    word = f"{name}{index}"
    return Pair(" ".join([word] + ["x"] * (index * 7 % 5)), " ".join([word] + ["y"] * (index % 6)))
