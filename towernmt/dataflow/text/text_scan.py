"""Scans: a first reading of whole text files, which checks them and takes their checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.text.chunks import Chunk, check_rereadable, read_chunks
from towernmt.dataflow.text.line_progress import LineProgress


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


def scan_pair(source: str | Path, target: str | Path, progress: LineProgress | None = None
              ) -> tuple[TextSummary, TextSummary]:
    """Read two parallel files once: both must be UTF-8 and have the same number of lines.

    Raises:
        DataError: missing file, wrong encoding (with line and byte), or unequal numbers of lines (with
            the line at which the shorter file ends).
    """
    for path in (source, target):
        check_rereadable(path)
    scans = _Scan(source), _Scan(target)
    for chunks in zip_longest(read_chunks(source), read_chunks(target)):
        for scan, chunk in zip(scans, chunks, strict=True):
            if chunk is not None:
                chunk.decode()
                scan.add(chunk)
        if progress is not None:
            progress.update(max(scan.lines for scan in scans))
    first, second = (scan.summary() for scan in scans)
    if first.lines != second.lines:
        short, long = sorted((first, second), key=lambda summary: summary.lines)
        raise DataError(f"{short.path} ends at line {short.lines}, but {long.path} has {long.lines} lines: "
                        "line n of one must be the translation of line n of the other. Look for a missing or "
                        "an extra line.")
    return first, second


def scan_parallel_file(path: str | Path, text: TextSummary) -> TextSummary:
    """Read a file that belongs to a text, line by line: it must be UTF-8 and have as many lines.

    Raises:
        DataError: missing file, wrong encoding (with line and byte), or another number of lines.
    """
    scan = _Scan(path)
    for chunk in read_chunks(path):
        chunk.decode()
        scan.add(chunk)
    if scan.lines != text.lines:
        raise DataError(f"{path} has {scan.lines} lines, but {text.path} has {text.lines}: line n of one must belong "
                        "to line n of the other. Look for a missing or an extra line.")
    return scan.summary()


class _Scan:
    def __init__(self, path: str | Path) -> None:
        self.path, self.lines, self.bytes, self.hash = str(path), 0, 0, hashlib.sha256()

    def add(self, chunk: Chunk) -> None:
        self.lines += chunk.lines
        self.bytes += len(chunk.data)
        self.hash.update(chunk.data)

    def summary(self) -> TextSummary:
        return TextSummary(self.path, self.lines, self.bytes, self.hash.hexdigest())
