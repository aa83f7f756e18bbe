"""Texts whose lines are translated, any run of which can be read: files on disks or in S3, and tables."""

from __future__ import annotations

import dataclasses
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.database.database_uri import parse_database_uri
from towernmt.dataflow.sources.database.table_source import DatabaseSource
from towernmt.dataflow.sources.formats.lines import whole_lines
from towernmt.dataflow.sources.open_source import names_database, open_storage
from towernmt.dataflow.storage.compression import split_compression
from towernmt.dataflow.storage.stored_files import Storage, StoredFile
from towernmt.dataflow.text.cleaning import one_line

Place = Any
"""Where a line of a text begins: a small value that JSON has, which the text understands."""


class Text(ABC):
    """Lines of bytes, each with its "\\n" (the last line of a file as it is).

    Who reads on from where the last reading ended costs no seek: a compressed file is decompressed once.

    Attributes:
        name: for messages and for the names of outputs.
        version: changes when the content does; "" where that cannot be seen.
    """

    name: str
    version: str

    def __init__(self) -> None:
        self._at: Place = None
        self._lines: Iterator[tuple[bytes, Place]] | None = None

    @abstractmethod
    def begin(self) -> Place:
        """The place of the first line.

        Raises:
            DataError: the text cannot be read.
        """

    def read(self, place: Place, lines: int, before: int = 0) -> list[bytes]:
        """So many lines from a place on, or as many as there are.

        Args:
            place: the beginning of a line.
            lines: how many.
            before: how many lines there are before, for messages.
        Raises:
            DataError: they cannot be read.
        """
        if self._lines is None or not self._reach(place):
            self._lines = self._lines_from(place, before)
        self._at, found = place, []
        try:
            for line, behind in islice(self._lines, lines):
                found.append(line)
                self._at = behind
        except BaseException:
            self._lines = None
            raise
        return found

    def close(self) -> None:
        """Keep nothing open until the next reading."""
        self._lines = None

    @property
    def place(self) -> Place:
        """Behind what was read last."""
        return self._at

    def _reach(self, place: Place) -> bool:
        """Whether what is open comes to this place without a new beginning."""
        return bool(self._at == place)

    @abstractmethod
    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        """The lines from a place on, each with the place behind it."""


class FileText(Text):
    """A file of lines, plain or compressed; a place is an offset into the (decompressed) bytes."""

    def __init__(self, storage: Storage, file: StoredFile) -> None:
        super().__init__()
        self.name, self.version = file.name, f"{file.size} {file.version}"
        self._storage, self._file = storage, file

    def begin(self) -> Place:
        """See `Text.begin`."""
        return 0

    def _reach(self, place: Place) -> bool:
        if split_compression(self.name)[1] is not None and self._lines is not None and self._at < place:
            for _, behind in self._lines:
                self._at = behind
                if self._at >= place:
                    break
        return super()._reach(place)

    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        blocks = whole_lines(self._storage, self._file, place, before)
        for line in chain.from_iterable(map(io.BytesIO, blocks)):
            place += len(line)
            yield line, place


class TableText(Text):
    """A column of a table, in the order of its key; a place is the cursor of the source.

    The plan has the largest key that was there when it was made: rows with larger ones are no part of it.
    """

    version = ""

    def __init__(self, source: DatabaseSource) -> None:
        super().__init__()
        self.name, self._source = source.name, source

    def begin(self) -> Place:
        """See `Text.begin`."""
        return self._source.begin()

    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        for cursor, pair in self._source.read(place):
            yield one_line(pair.source).encode("utf-8") + b"\n", cursor


def open_texts(uris: Sequence[str]) -> list[Text]:
    """The texts that are named, in this order; those of a pattern by name.

    Args:
        uris: paths and `s3://bucket/key`, with wildcards; or tables (`sqlite:///mono.db?table=lines&source=text`), of
            which the column `source` is read.
    Raises:
        SettingsError: a URI that cannot be.
        DataError: nothing matches, a place cannot be reached, or a text is named twice.
    """
    texts: list[Text] = []
    for uri in uris:
        if names_database(uri):
            table = parse_database_uri(uri)
            texts.append(TableText(DatabaseSource(dataclasses.replace(table, target=table.source))))
        else:
            storage, pattern = open_storage(uri)
            texts += [FileText(storage, file) for file in storage.list(pattern)]
    for name, count in Counter(text.name for text in texts).items():
        if count > 1:
            raise DataError(f"{name} is named twice as an input: leave one out.")
    return texts


def short_name(text: Text) -> str:
    """The name of a text without folders and without the ending of a compression."""
    place = split_compression(text.name)[0] if isinstance(text, FileText) else text.name.partition("?")[0]
    return PurePosixPath(place).name
