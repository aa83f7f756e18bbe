"""The one interface of every place that sentence pairs come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

Cursor = Any
"""A place in a source: a small JSON-serialisable value, opaque to everyone but the source that made it."""


class Pair(NamedTuple):
    """One sentence pair, as raw text."""

    source: str
    target: str


class Source(ABC):
    """Sentence pairs in a fixed order, each with the cursor to go on right after it.

    Reading holds nothing open between the iterators and keeps no state in the object: any number of iterators,
    in any number of threads, may read at once.

    Attributes:
        name: the URI, without credentials; for messages, logs and statistics.
    """

    name: str

    @abstractmethod
    def begin(self) -> Cursor:
        """The cursor before the first pair, and the promise of one pass: what is there now is read once.

        A source whose content may grow puts the bound of what is there now into the cursor.

        Raises:
            DataError: it cannot be reached, or is not what the URI says.
        """

    @abstractmethod
    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """The pairs after `cursor`, each with the cursor right after it; ends where the pass ends.

        Beginning at a cursor is a seek: its time does not depend on how many pairs lie before it.

        Raises:
            DataError: it cannot be read, or has changed so that the cursor has lost its meaning.
        """

    @abstractmethod
    def count(self) -> int:
        """How many pairs one pass from `begin()` has; may read everything once."""
