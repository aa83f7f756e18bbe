"""CSV files: one pair in each record. Quoted fields may hold delimiters, quotes and line ends (RFC 4180)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.formats.file_source import FileSource, Group
from towernmt.dataflow.sources.formats.lines import line_blocks
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.storage.stored_files import Storage, StoredFile
from towernmt.dataflow.text.cleaning import clean

Record = tuple[int, int, int, list[str]]
"""The first line of a record (from 1), the lines up to its end, the byte there, and its fields."""


class CommaSeparated(FileSource):
    """Two fields of each record; a place is (lines before it, byte offset in the text).

    Blank lines between records are skipped.

    Args:
        name: see `Source`.
        storage: where the files are.
        pattern: which ones.
        columns: the columns of source and target, from 0.
        names: their names instead, in the first record of each file.
        header: whether the first record of each file is a header and not a pair; with names it always is.
        delimiter: one character.
        missing: "error", or "skip" for records that lack a column.
    """

    start = (0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str, columns: tuple[int, int] = (0, 1),
                 names: tuple[str, str] | None = None, header: bool = False, delimiter: str = ",",
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.columns, self.names, self.delimiter = columns, names, delimiter
        self.header = header or names is not None
        self.skips = missing == "skip"

    def _read(self, head: Sequence[object], group: Group, place: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        file = group[0]
        source, target = self._columns(file)
        last = max(source, target)
        lines, offset = place
        records = self._records(file, lines, offset)
        if self.header and not offset:
            next(records, None)
        for first, lines, offset, fields in records:
            if len(fields) > last:
                yield [*head, lines, offset], Pair(fields[source], fields[target])
            elif not self.skips:
                count = f"{len(fields)} column{'s' * (len(fields) > 1)}"
                raise DataError(f"{file.name} line {first}: the record has {count}, but column {last} (counted from 0) "
                                "is asked for. Mend it, pass over such records with missing=skip, or name the "
                                f"delimiter if it is not '{self.delimiter}', as in delimiter=; or delimiter=tab.")

    def _columns(self, file: StoredFile) -> tuple[int, int]:
        """The columns of source and target; those given by name are looked up in the header."""
        first = None if self.names is None else next(self._records(file, 0, 0), None)
        if self.names is None or first is None:
            return self.columns
        fields = first[-1]
        for name in self.names:
            if fields.count(name) != 1:
                raise DataError(f"{file.name} line 1: there is {'more than one' if name in fields else 'no'} column "
                                f"'{name}'; the header has: {clean(', '.join(fields))[:200]}. Name the columns "
                                "with source=NAME&target=NAME, or by their numbers with columns=0,1.")
        return fields.index(self.names[0]), fields.index(self.names[1])

    def _records(self, file: StoredFile, lines: int, offset: int) -> Iterator[Record]:
        """The records after a place, which must be the end of a record."""
        text = _Lines(self.storage, file, lines, offset)
        # Strict: a file that ends inside a quoted field is an error.
        reader = csv.reader(text, delimiter=self.delimiter, strict=True)
        while True:
            first = text.lines + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise DataError(f"{file.name} line {first}: the record that begins here is not CSV ({error}). Look "
                                "for a quotation mark that is not closed; one within a quoted field is written "
                                "twice.") from None
            if fields is None:
                return
            if fields:
                yield first, text.lines, text.offset, fields


class _Lines:
    """The lines of a text with their ends, one by one, and the place after the last one."""

    def __init__(self, storage: Storage, file: StoredFile, lines: int, offset: int) -> None:
        self.lines, self.offset = lines, offset
        self._blocks = line_blocks(storage, file, offset, lines)

    def __iter__(self) -> Iterator[str]:
        for texts, ends in self._blocks:
            for text, self.offset in zip(texts, ends, strict=True):
                self.lines += 1
                yield f"{text}\n"
