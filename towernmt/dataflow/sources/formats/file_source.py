"""Files as a source: which files it has, in which order, whether they have changed, and how far reading has come.

A cursor is `[fingerprint, files, file, *place]`: the fingerprint of the files of this pass (names, sizes, versions),
how many they are, which one is being read (from 0), and the place in it, which the format understands. A file that
is added after the pass began, and sorts after its files, is read in the next pass.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.source import Cursor, Pair, Source
from towernmt.dataflow.storage.stored_files import Storage, StoredFile

Group = tuple[StoredFile, ...]
"""The files that are read together: one, or two parallel ones."""


class FileSource(Source):
    """Pairs from the files that a pattern matches; a format derives from it and reads one group of files.

    Attributes:
        start: the place before the first pair of a group.
    """

    start: tuple[int, ...]

    def __init__(self, name: str, storage: Storage, pattern: str) -> None:
        self.name = name
        self.storage = storage
        self.pattern = pattern

    def begin(self) -> Cursor:
        """See `Source.begin`."""
        groups = self._groups()
        return [_fingerprint(groups), len(groups), 0, *self.start]

    def read(self, cursor: Cursor) -> Iterator[tuple[Cursor, Pair]]:
        """See `Source.read`."""
        fingerprint, files, index, *place = self._checked(cursor)
        groups = self._groups()[:files]
        if len(groups) < files or _fingerprint(groups) != fingerprint:
            raise DataError(self._changed(files))
        for i in range(index, files):
            yield from self._read((fingerprint, files, i), groups[i], place)
            place = list(self.start)

    def count(self) -> int:
        """See `Source.count`."""
        return sum(self._count(group) for group in self._groups())

    @abstractmethod
    def _read(self, head: Sequence[object], group: Group, place: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        """The pairs of one group after `place`; each cursor is `[*head, *place]`."""

    def _groups(self) -> list[Group]:
        """The files to read now, in order; at least one group."""
        return [(file,) for file in self.storage.list(self.pattern)]

    def _count(self, group: Group) -> int:
        return sum(1 for _ in self._read((), group, self.start))

    def _checked(self, cursor: Cursor) -> Sequence[Any]:
        length = 3 + len(self.start)
        if not isinstance(cursor, (list, tuple)) or len(cursor) != length or not isinstance(cursor[0], str) or any(
                not isinstance(number, int) or number < 0 for number in cursor[1:]):
            raise DataError(f"{self.name}: {cursor!r} is no place in this source. Has its URI or format changed since "
                            "the place was saved?")
        return cursor

    def _changed(self, files: int) -> str:
        what = "the file has" if files == 1 else f"the {files} files have"
        return (f"{self.name}: {what} changed since the pass over {'it' if files == 1 else 'them'} began (another size "
                "or time of change, or a file was added or removed), so that saved places no longer hold. Put back "
                "what was there, or begin the data anew.")


def cursors(head: Sequence[object], *places: Iterable[int]) -> Iterator[Cursor]:
    """The cursors of consecutive pairs: `head`, which they share, and then one value from each of `places`."""
    return map(list, zip(*map(repeat, head), *places, strict=False))


def pairs(sources: Iterable[str], targets: Iterable[str]) -> Iterator[Pair]:
    """Two columns as `Pair`s, in half the time that calling `Pair` takes."""
    return map(_new_tuple, repeat(Pair), zip(sources, targets, strict=True))


_new_tuple = tuple.__new__


def _fingerprint(groups: Sequence[Group]) -> str:
    lines = "\n".join(f"{file.name}\t{file.size}\t{file.version}" for group in groups for file in group)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()[:16]
