"""The first reading of whole text files: their checks and checksums, and an index of their chunks of lines.

`Scan` checks one file while it is read. `TextIndex` records where each chunk of lines begins, so that many processes
can read ranges of a file. A compressed file has no such positions: the first reading unpacks it to a plain file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import LINES_PER_CHUNK, Chunk, check_rereadable, read_chunks


@dataclass(frozen=True)
class TextSummary:
    """The result of a scan of a complete file.

    Attributes:
        path: path of the file as written by the user.
        lines: number of lines.
        bytes: size of the (decompressed) text.
        sha256: checksum of the (decompressed) text.
    """

    path: str
    lines: int
    bytes: int
    sha256: str


def scan_pair(source: str | Path, target: str | Path) -> tuple[TextSummary, TextSummary]:
    """Read two parallel files once, and check that both are UTF-8 and have the same number of lines.

    Raises:
        DataError: a file is missing, its encoding is wrong (with line and byte), or the numbers of lines differ (with
            the line at which the shorter file ends).
    """
    for path in (source, target):
        check_rereadable(path)
    scans = Scan(source), Scan(target)
    for chunks in zip_longest(read_chunks(source), read_chunks(target)):
        for scan, chunk in zip(scans, chunks, strict=True):
            if chunk is not None:
                chunk.decode()
                scan.add(chunk)
    first, second = (scan.summary() for scan in scans)
    check_parallel(first, second)
    return first, second


def check_parallel(first: TextSummary, second: TextSummary) -> None:
    """Check that both sides have the same number of lines.

    Raises:
        DataError: the numbers of lines differ.
    """
    if first.lines != second.lines:
        short, long = sorted((first, second), key=lambda summary: summary.lines)
        if not short.lines:
            raise DataError(f"{short.path} is empty, but {long.path} has {long.lines} lines: pass a file with one "
                            "translation in each line.")
        raise DataError(f"{short.path} ends at line {short.lines}, but {long.path} has {long.lines} lines. Line n of "
                        "one file must be the translation of line n of the other: look for a missing or an extra "
                        "line.")


def check_as_long(other: TextSummary, text: TextSummary) -> None:
    """Check that a file that belongs to a text, line by line, has the same number of lines.

    Raises:
        DataError: the numbers of lines differ.
    """
    if other.lines != text.lines:
        raise DataError(f"{other.path} has {other.lines} lines, but {text.path} has {text.lines}. Line n of one file "
                        "must belong to line n of the other: look for a missing or an extra line.")


class Scan:
    """The counts and the checksum of a file while it is read, chunk by chunk.

    Attributes:
        path, lines, bytes: those of `TextSummary`, for the chunks that were added.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.lines, self.bytes, self._hash = str(path), 0, 0, hashlib.sha256()

    def add(self, chunk: Chunk) -> None:
        """Count and hash the next chunk."""
        self.lines += chunk.lines
        self.bytes += len(chunk.data)
        self._hash.update(chunk.data)

    def summary(self) -> TextSummary:
        """Return the summary of the chunks that were added."""
        return TextSummary(self.path, self.lines, self.bytes, self._hash.hexdigest())


@dataclass(frozen=True)
class TextRange:
    """A range of consecutive chunks of a text; small enough to be sent to other processes.

    Attributes:
        path: path of the text as written by the user, for messages.
        file: path of the decompressed content.
        file_bytes: size of that file.
        first_line: number of the first line, from 1.
        lines: number of lines.
        offsets: byte offsets of the beginning of each chunk, and of the end of the last one.
    """

    path: str
    file: str
    file_bytes: int
    first_line: int
    lines: int
    offsets: tuple[int, ...]

    @property
    def title(self) -> str:
        """A description for messages: "lines 1 to 4,096 of train.de"."""
        return f"lines {self.first_line:,} to {self.first_line + self.lines - 1:,} of {self.path}"

    def chunks(self) -> Iterator[Chunk]:
        """Read the chunks of the range.

        Raises:
            DataError: the file cannot be read, or has changed since it was indexed.
        """
        try:
            with open(self.file, "rb") as file:
                if os.fstat(file.fileno()).st_size != self.file_bytes:
                    raise _changed(self.path)
                file.seek(self.offsets[0])
                for number, (start, stop) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
                    data, lines = file.read(stop - start), self._lines_of(number)
                    if len(data) != stop - start or data.count(b"\n", 0, -1) != lines - 1:
                        raise _changed(self.path)
                    yield Chunk(self.path, self.first_line + number * LINES_PER_CHUNK, lines, data)
        except OSError as error:
            raise DataError(f"{self.file}: cannot be read ({error.strerror}). Check the file; with several machines, "
                            "all of them need it under this path.") from error

    def _lines_of(self, chunk: int) -> int:
        return min(LINES_PER_CHUNK, self.lines - chunk * LINES_PER_CHUNK)


@dataclass(frozen=True)
class TextIndex:
    """The result of the first reading of a file.

    Attributes:
        summary: lines, bytes and checksum.
        file: path of the decompressed content.
        file_bytes: size of that file.
        offsets: byte offsets of the beginning of each chunk, and of the end of the last one.
        state: state of the file that was read, see `state_of`.
    """

    summary: TextSummary
    file: str
    file_bytes: int
    offsets: list[int]
    state: list[int]

    def parts(self, chunks: int) -> list[TextRange]:
        """Return the text in ranges of `chunks` chunks each; the last range may be smaller."""
        lines = chunks * LINES_PER_CHUNK
        return [TextRange(self.summary.path, self.file, self.file_bytes, 1 + n * lines,
                         min(lines, self.summary.lines - n * lines),
                         tuple(self.offsets[n * chunks:(n + 1) * chunks + 1]))
                for n in range(-(-self.summary.lines // lines))]

    def check_unchanged(self) -> None:
        """Check that the content of the file has not changed since it was read.

        Raises:
            DataError: the content has changed.
        """
        if state_of(self.summary.path) == self.state:
            return
        scan = Scan(self.summary.path)      # the same content may have a new time of modification
        for chunk in read_chunks(self.summary.path):
            scan.add(chunk)
        if scan.summary() != self.summary:
            raise _changed(self.summary.path)

    def to_text(self) -> str:
        """Return the index as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> TextIndex:
        """Return the index that `to_text` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"summary": TextSummary(**values["summary"])})


def _changed(path: str) -> DataError:
    return DataError(f"{path} has changed since it was checked. Prepare again when no program writes to it.")


def state_of(path: str | Path) -> list[int]:
    """Return the size and the modification time of a file, or an empty list if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def index_text(path: str, unpacked: Path | None = None, later: Path | None = None) -> TextIndex:
    """Read a complete file, check that it is UTF-8, and return its index.

    Args:
        path: path of the text.
        unpacked: for a compressed file, path to which the decompressed content is written.
        later: final path of the decompressed content after the caller has moved it.

    Raises:
        DataError: the file is missing, or its encoding is wrong (with line and byte).
    """
    state, scan, offsets = state_of(path), Scan(path), [0]
    with nullcontext() if unpacked is None else open(unpacked, "wb") as copy:
        for chunk in read_chunks(path):
            chunk.decode()
            scan.add(chunk)
            offsets.append(scan.bytes)
            if copy is not None:
                copy.write(chunk.data)
    return TextIndex(scan.summary(), os.path.abspath(later or path), scan.bytes, offsets, state)
