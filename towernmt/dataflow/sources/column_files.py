"""Files with named columns: CSV (one pair a record) and Parquet (two columns of text, read in batches of rows).

Quoted fields of CSV may contain delimiters, quotes and line ends (RFC 4180).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.line_files import line_blocks
from towernmt.dataflow.sources.source import Cursor, FileSource, Group, Pair, zip_cursors, zip_pairs
from towernmt.dataflow.storage.stored_files import PositionedReader, Storage, StoredFile, split_compression
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.text_lines import LONGEST_LINE

if TYPE_CHECKING:
    from pyarrow import Array, Scalar
    from pyarrow.parquet import ParquetFile


class CsvReader(Protocol):
    """The iterator over rows that `csv.reader` returns."""

    @property
    def line_num(self) -> int:
        """Number of lines that were read."""
        ...

    def __iter__(self) -> Iterator[list[str]]:
        ...

    def __next__(self) -> list[str]:
        ...


def read_csv(lines: Iterable[str], delimiter: str = ",", longest: int = LONGEST_LINE) -> CsvReader:
    """Return the rows of CSV as `csv.reader` does, also those with long fields.

    Strict: a text that ends inside a quoted field is an error.

    Args:
        lines: the text, as lines with their ends.
        delimiter: one character between fields.
        longest: maximum number of characters of a field. It holds for the process, in which it is never lowered; the
            default of Python is 128 Ki.
    """
    csv.field_size_limit(max(csv.field_size_limit(), longest))
    return csv.reader(lines, delimiter=delimiter, strict=True)


Record = tuple[int, int, int, list[str]]
"""The first line of a record (from 1), the number of lines up to its end, the byte offset of its end, its fields."""


class CommaSeparated(FileSource):
    """CSV files: two fields of each record. A position is (lines before it, byte offset in the text).

    Blank lines between records are skipped.

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        columns: indices of the source and target columns, from 0.
        names: names of the source and target columns in the first record of each file; replaces `columns`.
        header: whether the first record of each file is a header; with `names` it always is.
        delimiter: one character between fields.
        missing: "error" to refuse, or "skip" to skip records that lack a column.
    """

    start = (0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str, columns: tuple[int, int] = (0, 1),
                 names: tuple[str, str] | None = None, header: bool = False, delimiter: str = ",",
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.columns, self.names, self.delimiter = columns, names, delimiter
        self.header = header or names is not None
        self.skips = missing == "skip"

    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        file = group[0]
        source, target = self._columns(file)
        last = max(source, target)
        lines, offset = position
        records = self._records(file, lines, offset)
        if self.header and not offset:
            next(records, None)
        for first, lines, offset, fields in records:
            if len(fields) > last:
                yield [*head, lines, offset], Pair(fields[source], fields[target])
            elif not self.skips:
                count = f"{len(fields)} column{'s' * (len(fields) > 1)}"
                raise DataError(f"{file.name} line {first}: the record has {count}, but column {last} (counted from 0) "
                                "is requested. Fix the record, skip such records with missing=skip, or set the "
                                f"delimiter if it is not '{self.delimiter}', as in delimiter=; or delimiter=tab.")

    def _columns(self, file: StoredFile) -> tuple[int, int]:
        """Return the indices of the source and target columns. Names are looked up in the header."""
        first = None if self.names is None else next(self._records(file, 0, 0), None)
        if self.names is None or first is None:
            return self.columns
        fields = first[-1]
        for name in self.names:
            if fields.count(name) != 1:
                problem = "is not unique" if name in fields else "is missing"
                raise DataError(f"{file.name} line 1: column '{name}' {problem}; the header has: "
                                f"{clean(', '.join(fields))[:200]}. Name the columns with source=NAME&target=NAME, or "
                                "by their numbers with columns=0,1.")
        return fields.index(self.names[0]), fields.index(self.names[1])

    def _records(self, file: StoredFile, lines: int, offset: int) -> Iterator[Record]:
        """Yield the records after a position, which must be the end of a record."""
        text = _RecordLines(self.storage, file, lines, offset)
        reader = read_csv(text, self.delimiter)
        while True:
            first = text.lines + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise DataError(f"{file.name} line {first}: the record that begins here is not valid CSV ({error}). "
                                "Look for a quotation mark that is not closed; write one within a quoted field "
                                "twice.") from None
            if fields is None:
                return
            if fields:
                yield first, text.lines, text.offset, fields


class _RecordLines:
    """An iterator over the lines of a text with their ends, and the position after the last line."""

    def __init__(self, storage: Storage, file: StoredFile, lines: int, offset: int) -> None:
        self.lines, self.offset = lines, offset
        self._blocks = line_blocks(storage, file, offset, lines)

    def __iter__(self) -> Iterator[str]:
        for texts, ends in self._blocks:
            for text, self.offset in zip(texts, ends, strict=True):
                self.lines += 1
                yield f"{text}\n"


BATCH_ROWS = 4096
_BUFFER_BYTES = 4 << 20     # of each column


class Parquet(FileSource):
    """Two columns of Parquet files. A position is (row group, rows of the group before it).

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        source: name of the column with the source text; "a.b" is field b of the structs in column a.
        target: name of the column with the target text.
        missing: "error" to refuse, or "skip" to skip rows in which a text is null.
    """

    start = (0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str, source: str = "source", target: str = "target",
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.columns = source, target
        self.skips = missing == "skip"

    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        first_group, row = position
        with self._opened(group[0]) as parquet:
            for row_group in range(first_group, parquet.num_row_groups):
                yield from self._read_row_group(parquet, [*head, row_group], group[0].name, row)
                row = 0

    def _read_row_group(self, parquet: ParquetFile, head: Sequence[object], name: str, first: int
                        ) -> Iterator[tuple[Cursor, Pair]]:
        row = 0
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[head[-1]], columns=list(self.columns),
                                          use_threads=False):
            skipped = min(max(0, first - row), batch.num_rows)
            batch = batch.slice(skipped)
            row += skipped
            group_name = f"{name} row group {head[-1]}"
            sides = [_column_texts(_find_column(batch, column), group_name) for column in self.columns]
            numbers = range(row + 1, row + batch.num_rows + 1)
            if all(set(map(type, side)) <= {str} for side in sides):
                yield from zip(zip_cursors(head, numbers), zip_pairs(*sides), strict=True)
            else:
                yield from self._read_single_rows(head, group_name, numbers, sides)
            row += batch.num_rows

    def _read_single_rows(self, head: Sequence[object], group_name: str, numbers: Sequence[int],
                          sides: Sequence[list[Any]]) -> Iterator[tuple[Cursor, Pair]]:
        for number, *texts in zip(numbers, *sides, strict=True):
            for column, text in zip(self.columns, texts, strict=True):
                if isinstance(text, bytes):
                    raise DataError(f"{group_name} row {number}: column '{column}' is not UTF-8. Fix the file.")
                if text is None and not self.skips:
                    raise DataError(f"{group_name} row {number}: column '{column}' is null. Fix the file, or skip such "
                                    "rows with missing=skip.")
            if None not in texts:
                yield [*head, number], Pair(*texts)

    def _count(self, group: Group) -> int:
        if self.skips:
            return super()._count(group)
        with self._opened(group[0]) as parquet:
            return int(parquet.metadata.num_rows)

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[ParquetFile]:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise DataError("Reading Parquet files needs the package pyarrow: pip install 'towernmt[parquet]'."
                            ) from error
        if compression := split_compression(file.name)[1]:
            raise DataError(f"{file.name}: a Parquet file cannot be read through {compression.name}. Decompress the "
                            "file; the data in it are compressed anyway.")
        with SeekableFile(self.storage, file) as opened:
            try:
                parquet = ParquetFile(opened, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
                self._check_columns(parquet, file.name)
                yield parquet
            except MemoryError:     # also an ArrowException
                raise
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{file.name}: the file cannot be read as Parquet ({' '.join(str(error).split())}). "
                                "Restore it from a good copy.") from error

    def _check_columns(self, parquet: ParquetFile, name: str) -> None:
        existing = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        for column in self.columns:
            if column not in existing:
                raise DataError(f"{name}: column '{column}' is missing; the columns are: {', '.join(existing)}. Name "
                                "the columns with source=NAME&target=NAME.")


class SeekableFile(PositionedReader):
    """A stored file that can be read at any position. A jump opens it again."""

    def __init__(self, storage: Storage, file: StoredFile) -> None:
        super().__init__(file)
        self._storage = storage
        self._opened: BinaryIO | None = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset in bytes, and return the new position."""
        before = self._position
        if super().seek(offset, whence) != before:
            self._close_stored()
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return their number."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and self._position < self._file.size:
            if self._opened is None:
                self._opened = self._storage.open(self._file, self._position)
            data = self._opened.read(len(view) - filled)
            if not data:
                raise DataError(f"{self._file.name}: the file had {self._file.size} bytes when reading began, but ends "
                                f"at byte {self._position}. Do not change a file while it is read.")
            view[filled:filled + len(data)] = data
            filled += len(data)
            self._position += len(data)
        return filled

    def close(self) -> None:
        """Close the stored file."""
        self._close_stored()
        super().close()

    def _close_stored(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _find_column(batch: Any, column: str) -> Array:
    """Return a column, or the field of structs that a dotted name denotes."""
    if column in batch.schema.names:
        return batch.column(column)
    first, *fields = column.split(".")
    array = batch.column(first)
    for field in fields:
        import pyarrow.compute
        array = pyarrow.compute.struct_field(array, field)
    return array


def _column_texts(array: Array, group_name: str) -> list[Any]:
    """Return the texts of a column: None for a null, bytes for a text that is not UTF-8."""
    try:
        texts: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        return [_text_or_bytes(scalar) for scalar in array]
    if not set(map(type, texts)) <= {str, NoneType}:
        raise DataError(f"{group_name}: a column contains {array.type} instead of text. Name the columns of text with "
                        "source=NAME&target=NAME.")
    return texts


def _text_or_bytes(scalar: Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error.object
