"""The interface of all sources of sentence pairs, and the base class of those that read files.

The cursor of a `FileSource` is `[fingerprint, files, file, *position]`: the fingerprint of the files of this pass
(names, sizes, versions), their number, the index of the file that is being read (from 0), and the position in it,
which the format understands. A file that is added after the pass began, and sorts after its files, is read in the
next pass.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.storage.stored_files import Storage, StoredFile

Cursor = Any
"""A position in a source: a small JSON-serialisable value, which only the source that returned it interprets."""


class Pair(NamedTuple):
    """One sentence pair, as raw text."""

    source: str
    target: str


class Source(ABC):
    """Sentence pairs in a fixed order, each with the cursor after it.

    Iterators share neither open files nor state, so any number of iterators in any number of threads may read at once.

    Attributes:
        name: the URI without credentials, for messages, logs and statistics.
    """

    name: str

    @abstractmethod
    def begin(self) -> Cursor:
        """Return the cursor before the first pair. A pass from this cursor reads the present content once.

        If the content may grow, the cursor contains the end of the present content.

        Raises:
            DataError: the source cannot be reached, or does not match the URI.
        """

    @abstractmethod
    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """Yield the pairs after `cursor` until the end of the pass, each with the cursor after it.

        Starting at a cursor is a seek: its time does not depend on the number of pairs before the cursor.

        Raises:
            DataError: the source cannot be read, or has changed so that the cursor is no longer valid.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of pairs of one pass from `begin()`. May read everything once."""


Group = tuple[StoredFile, ...]
"""The files that are read together: one, or two parallel ones."""


class FileSource(Source):
    """Base class of file formats: pairs from the files that a pattern matches. A subclass reads one group of files.

    Attributes:
        start: the position before the first pair of a group.
    """

    start: tuple[int, ...]

    def __init__(self, name: str, storage: Storage, pattern: str) -> None:
        self.name = name
        self.storage = storage
        self.pattern = pattern

    def begin(self) -> Cursor:
        """Return the cursor before the first pair of the first file; see `Source.begin`."""
        groups = self._groups()
        return [_hash_groups(groups), len(groups), 0, *self.start]

    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """See `Source.read`."""
        fingerprint, files, index, *position = self._validate_cursor(cursor)
        groups = self._groups()[:files]
        if len(groups) < files or _hash_groups(groups) != fingerprint:
            raise DataError(self._files_changed(files))
        for i in range(index, files):
            yield from self._read((fingerprint, files, i), groups[i], position)
            position = list(self.start)

    def count(self) -> int:
        """Return the number of pairs in all files; see `Source.count`."""
        return sum(self._count(group) for group in self._groups())

    @abstractmethod
    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        """Yield the pairs of one group after `position`, each with the cursor `[*head, *position]` after it."""

    def _groups(self) -> list[Group]:
        """Return the present files in order, at least one group."""
        return [(file,) for file in self.storage.list(self.pattern)]

    def _count(self, group: Group) -> int:
        return sum(1 for _ in self._read((), group, self.start))

    def _validate_cursor(self, cursor: Cursor) -> Sequence[Any]:
        length = 3 + len(self.start)
        if not isinstance(cursor, (list, tuple)) or len(cursor) != length or not isinstance(cursor[0], str) or any(
                not isinstance(number, int) or number < 0 for number in cursor[1:]):
            raise DataError(f"{self.name}: {cursor!r} is not a position in this source. Restore the URI and the "
                            "format with which the position was saved.")
        return cursor

    def _files_changed(self, files: int) -> str:
        subject, pronoun = ("the file has", "it") if files == 1 else (f"the {files} files have", "them")
        return (f"{self.name}: {subject} changed since the pass over {pronoun} began (the size or modification time "
                "differs, or a file was added or removed), so saved positions are not valid. Restore the old files, "
                "or start again: train in another --logdir, or load into another table.")


def zip_cursors(head: Sequence[object], *positions: Iterable[int]) -> Iterator[Cursor]:
    """Yield the cursors of consecutive pairs: the common `head`, then one value from each of `positions`."""
    return map(list, zip(*map(repeat, head), *positions, strict=False))


def zip_pairs(sources: Iterable[str], targets: Iterable[str]) -> Iterator[Pair]:
    """Yield two columns as `Pair`s, in half the time that calling `Pair` takes."""
    return map(_new_tuple, repeat(Pair), zip(sources, targets, strict=True))


_new_tuple = tuple.__new__


def _hash_groups(groups: Sequence[Group]) -> str:
    lines = "\n".join(f"{file.name}\t{file.size}\t{file.version}" for group in groups for file in group)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()[:16]
