"""Scans: a first reading of whole text files, which checks them and takes their checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.text.chunks import Chunk, check_rereadable, read_chunks


@dataclass(frozen=True)
class TextSummary:
    """What a scan of a whole file found.

    Attributes:
        path: the file as it was named.
        lines: number of lines.
        bytes: size of the (decompressed) text.
        sha256: of the (decompressed) text.
    """

    path: str
    lines: int
    bytes: int
    sha256: str


def scan_pair(source: str | Path, target: str | Path) -> tuple[TextSummary, TextSummary]:
    """Read two parallel files once: both must be UTF-8 and have the same number of lines.

    Raises:
        DataError: missing file, wrong encoding (with line and byte), or unequal numbers of lines (with
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
    """Raises:
        DataError: the two sides have not the same number of lines.
    """
    if first.lines != second.lines:
        short, long = sorted((first, second), key=lambda summary: summary.lines)
        raise DataError(f"{short.path} ends at line {short.lines}, but {long.path} has {long.lines} lines: "
                        "line n of one must be the translation of line n of the other. Look for a missing or "
                        "an extra line.")


def check_as_long(other: TextSummary, text: TextSummary) -> None:
    """Raises:
        DataError: a file that belongs to a text, line by line, has another number of lines.
    """
    if other.lines != text.lines:
        raise DataError(f"{other.path} has {other.lines} lines, but {text.path} has {text.lines}: line n of one must "
                        "belong to line n of the other. Look for a missing or an extra line.")


class Scan:
    """Counts and hashes a file while it is read, chunk by chunk.

    Attributes:
        path, lines, bytes: see `TextSummary`, so far.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.lines, self.bytes, self._hash = str(path), 0, 0, hashlib.sha256()

    def add(self, chunk: Chunk) -> None:
        """The next chunk."""
        self.lines += chunk.lines
        self.bytes += len(chunk.data)
        self._hash.update(chunk.data)

    def summary(self) -> TextSummary:
        """Of what was added."""
        return TextSummary(self.path, self.lines, self.bytes, self._hash.hexdigest())
