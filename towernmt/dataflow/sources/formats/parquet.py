"""Parquet files: two columns of texts, a few thousand rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.formats.file_source import FileSource, Group, cursors, pairs
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.storage.stored_files import Storage, StoredFile

if TYPE_CHECKING:
    from pyarrow import Array
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 4096
_BUFFER_BYTES = 4 << 20     # of each column


class Parquet(FileSource):
    """Two columns of Parquet files; a place is (row group, rows of it before the place).

    Args:
        name: see `Source`.
        storage: where the files are.
        pattern: which ones.
        source: the column with the source text; "a.b" is the field b of the structs in column a.
        target: the column with the target text.
        missing: "error", or "skip" for rows in which a text is null.
    """

    start = (0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str, source: str = "source", target: str = "target",
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.columns = source, target
        self.skips = missing == "skip"

    def _read(self, head: Sequence[object], group: Group, place: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        first_group, row = place
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
            sides = [_column(batch, column) for column in self.columns]
            numbers: Iterator[int] = iter(range(row + 1, row + batch.num_rows + 1))
            place = f"{name} row group {head[-1]}"
            if any(side.null_count for side in sides):
                yield from self._read_gaps(head, place, numbers, sides)
            else:
                yield from zip(cursors(head, numbers), pairs(*map(_texts, sides, repeat(place))), strict=True)
            row += batch.num_rows

    def _read_gaps(self, head: Sequence[object], place: str, numbers: Iterator[int], sides: Sequence[Array]
                   ) -> Iterator[tuple[Cursor, Pair]]:
        for number, source, target in zip(numbers, *(_texts(side, place) for side in sides), strict=True):
            if source is not None and target is not None:
                yield [*head, number], Pair(source, target)
            elif not self.skips:
                column = self.columns[0 if source is None else 1]
                raise DataError(f"{place} row {number}: column '{column}' holds no text (null). Mend the file, or pass "
                                "over such rows with missing=skip.")

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
        with SeekableFile(self.storage, file) as opened:
            try:
                parquet = ParquetFile(opened, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
                self._check_columns(parquet, file.name)
                yield parquet
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{file.name}: it cannot be read as Parquet ({' '.join(str(error).split())}). Restore "
                                "the file from a good copy.") from error

    def _check_columns(self, parquet: ParquetFile, name: str) -> None:
        known = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        for column in self.columns:
            if column not in known:
                raise DataError(f"{name}: there is no column '{column}'; it has: {', '.join(known)}. Name the columns "
                                "with source=NAME&target=NAME.")


class SeekableFile(io.RawIOBase):
    """A stored file that can be read at any place. Each jump opens it anew."""

    def __init__(self, storage: Storage, file: StoredFile) -> None:
        self._storage = storage
        self._file = file
        self._position = 0
        self._opened: BinaryIO | None = None

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether `seek` works."""
        return True

    def tell(self) -> int:
        """The place, in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, in bytes; returns it."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        if position != self._position:
            self._close_stored()
            self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; returns how many there were."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and self._position < self._file.size:
            if self._opened is None:
                self._opened = self._storage.open(self._file, self._position)
            data = self._opened.read(len(view) - filled)
            if not data:
                raise DataError(f"{self._file.name}: it had {self._file.size} bytes when reading began, but ends at "
                                f"byte {self._position}. Do not change a file while it is read.")
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


def _column(batch: Any, column: str) -> Array:
    """One column, or the field of structs that a dotted name stands for."""
    if column in batch.schema.names:
        return batch.column(column)
    first, *fields = column.split(".")
    array = batch.column(first)
    for field in fields:
        import pyarrow.compute
        array = pyarrow.compute.struct_field(array, field)
    return array


def _texts(array: Array, place: str) -> list[Any]:
    texts: list[Any] = array.to_pylist()
    wrong = next((text for text in texts if text is not None and not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"{place}: a column holds {array.type} and not texts. Name the columns of text with "
                        "source=NAME&target=NAME.")
    return texts
