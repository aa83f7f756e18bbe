"""An index of a text file: where each chunk of lines begins, so that many processes can read parts of it.

A compressed file has no such places: the first reading unpacks it to a plain file beside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.text.chunks import LINES_PER_CHUNK, Chunk, read_chunks
from towernmt.dataflow.text.text_scan import Scan, TextSummary


@dataclass(frozen=True)
class TextPart:
    """Some consecutive chunks of a text; small, and sent to other processes.

    Attributes:
        path: the text as it was named, for messages.
        file: where its plain content is.
        file_bytes: size of that file.
        first_line: number of the first line, from 1.
        lines: how many.
        offsets: bytes at which each chunk begins, and at which the last one ends.
    """

    path: str
    file: str
    file_bytes: int
    first_line: int
    lines: int
    offsets: tuple[int, ...]

    @property
    def title(self) -> str:
        """For messages: "lines 1 to 4,096 of train.de"."""
        return f"lines {self.first_line:,} to {self.first_line + self.lines - 1:,} of {self.path}"

    def chunks(self) -> Iterator[Chunk]:
        """Read the part.

        Raises:
            DataError: the file cannot be read, or is no longer the one that was indexed.
        """
        try:
            with open(self.file, "rb") as file:
                if os.fstat(file.fileno()).st_size != self.file_bytes:
                    raise self._changed()
                file.seek(self.offsets[0])
                for number, (start, stop) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
                    data, lines = file.read(stop - start), self._lines_of(number)
                    if len(data) != stop - start or data.count(b"\n", 0, -1) != lines - 1:
                        raise self._changed()
                    yield Chunk(self.path, self.first_line + number * LINES_PER_CHUNK, lines, data)
        except OSError as error:
            raise DataError(f"{self.file}: cannot be read ({error.strerror}). Check the file; processes on several "
                            "machines all need it under this path.") from error

    def _lines_of(self, chunk: int) -> int:
        return min(LINES_PER_CHUNK, self.lines - chunk * LINES_PER_CHUNK)

    def _changed(self) -> DataError:
        return DataError(f"{self.path} has changed since it was checked. Prepare again, while nothing writes to it.")


@dataclass(frozen=True)
class TextIndex:
    """What the first reading of a file found.

    Attributes:
        summary: lines, bytes and checksum.
        file: where the plain content is.
        file_bytes: size of that file.
        offsets: bytes at which each chunk begins, and at which the last one ends.
        state: of the file that was read, see `state_of`.
    """

    summary: TextSummary
    file: str
    file_bytes: int
    offsets: list[int]
    state: list[int]

    def parts(self, chunks: int) -> list[TextPart]:
        """The text in parts of so many chunks; the last one may be smaller."""
        lines = chunks * LINES_PER_CHUNK
        return [TextPart(self.summary.path, self.file, self.file_bytes, 1 + n * lines,
                         min(lines, self.summary.lines - n * lines),
                         tuple(self.offsets[n * chunks:(n + 1) * chunks + 1]))
                for n in range(-(-self.summary.lines // lines))]

    def check_unchanged(self) -> None:
        """Raises:
            DataError: the file is no longer the one that was read.
        """
        if state_of(self.summary.path) != self.state:
            raise DataError(f"{self.summary.path} has changed since it was checked. Prepare again, while nothing "
                            "writes to it.")

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> TextIndex:
        """What `to_text` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"summary": TextSummary(**values["summary"])})


def state_of(path: str | Path) -> list[int]:
    """Size and time of the last change of a file; nothing if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]


def index_text(path: str, unpacked: Path | None = None, later: Path | None = None) -> TextIndex:
    """Read a whole file: it must be UTF-8.

    Args:
        path: of the text.
        unpacked: of a compressed file, where its plain content is written.
        later: where that will be when all is read.
    Raises:
        DataError: missing file, or wrong encoding (with line and byte).
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
