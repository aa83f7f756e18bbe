"""Reading text files: one sentence a line, UTF-8, any size, in flat memory.

The first step of the data's way. Lines end at "\n" alone (a "\r" before it belongs to the line end;
U+2028, form feeds and the like do not split a line), a byte order mark at the start is skipped, a last
line without "\n" counts, and names that end in ".gz" are decompressed on the way.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, cast

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.text.progress import Progress

LINES_PER_CHUNK = 4096
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters, and what str.splitlines or an editor would take for the end of a line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def clean(text: str) -> str:
    """Unicode NFC, every run of whitespace or control characters one space, none at the ends (see `one_line`)."""
    text = one_line(text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


def one_line(text: str) -> str:
    """`text` with a space for every run of control characters (NUL is one) and line separators.

    Surrogates that stand alone (they have no UTF-8 form) become U+FFFD, so that the result can always
    be written.
    """
    if text.isprintable():      # the quick way for nearly all texts: neither of the two is printable
        return text
    return _CONTROL.sub(" ", _SURROGATE.sub("\ufffd", text))


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file, undecoded, so that another process can do the work.

    Attributes:
        path: the file, for error messages.
        first_line: number of the first line, from 1.
        lines: how many lines there are.
        data: the bytes, line ends included.
    """

    path: str
    first_line: int
    lines: int
    data: bytes

    def decode(self) -> list[str]:
        """The lines without their ends.

        Raises:
            DataError: not UTF-8; the message has the file, the line and the byte.
        """
        data = self.data
        if self.first_line == 1 and data.startswith(_BOM):
            data = data[len(_BOM):]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(self._encoding_message(data, error.start)) from None
        if wide_encoding(data, self.first_line == 1):
            raise DataError(self._encoding_message(data, 0))
        lines = text.split("\n")
        if text.endswith("\n"):
            lines.pop()
        if "\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
        return lines

    def _encoding_message(self, data: bytes, position: int) -> str:
        encoding = wide_encoding(data, self.first_line == 1)
        if encoding is not None and not data.startswith(_UTF16_BOMS):
            return (f"{self.path} line {self.first_line}: the text is {encoding} (without a byte order mark), but "
                    f"UTF-8 is expected. Convert it: iconv -f {encoding} -t UTF-8 {self.path} > {self.path}.utf8")
        if self.first_line == 1 and data.startswith(_UTF16_BOMS):
            return (f"{self.path}: the file is UTF-16 (it starts with its byte order mark), but UTF-8 is "
                    f"expected. Convert it: iconv -f UTF-16 -t UTF-8 {self.path} > {self.path}.utf8")
        line = self.first_line + data.count(b"\n", 0, position)
        column = position - (data.rfind(b"\n", 0, position) + 1) + 1
        return (f"{self.path} line {line}: byte {column} of the line (0x{data[position]:02x}) is not UTF-8. "
                f"Convert the file (for example: iconv -f ISO-8859-1 -t UTF-8) or mend that line.")


def wide_encoding(data: bytes, beginning: bool = True) -> str | None:
    """The encoding of two or four bytes a character that valid UTF-8 seems to be; None: none.

    The high bytes of most alphabets are control characters, which then fill every second place.

    Args:
        data: whole lines.
        beginning: whether they are the first of a file.
    """
    if len(data) < 4 or b"\0" not in data:
        return None
    high = np.frombuffer(data, np.uint8) < 0x09
    if high.mean() > 0.7:
        return "UTF-32"
    even, odd = high[::2].mean(), high[1::2].mean()
    if max(even, odd) < 0.8:
        return None
    # Behind a line end of little-endian text, which is cut behind its first byte, a high byte comes first.
    return "UTF-16LE" if odd > even else "UTF-16BE" if beginning else "UTF-16"


def check_rereadable(path: str | Path) -> None:
    """Refuse what can be read only once, where text is read several times.

    Raises:
        DataError: a pipe or a device, such as `<(cat train.de)` or /dev/stdin.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return      # whoever opens it says what is wrong
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(f"{path}: a pipe or a device can be read only once, but this text is read several times. Write "
                        "it to a file.")


def read_chunks(path: str | Path, lines: int = LINES_PER_CHUNK) -> Iterator[Chunk]:
    """The file as chunks of `lines` lines (the last one may be shorter).

    Raises:
        DataError: the file is missing or cannot be read.
    """
    first_line = 1
    try:
        with _open(path) as file:
            while block := list(islice(file, lines)):
                yield Chunk(str(path), first_line, len(block), b"".join(block))
                first_line += len(block)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(_read_message(path, error)) from error


def read_lines(path: str | Path) -> Iterator[str]:
    """The decoded lines of a file, one by one.

    Raises:
        DataError: missing, unreadable, or not UTF-8.
    """
    for chunk in read_chunks(path):
        yield from chunk.decode()


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


def scan_pair(source: str | Path, target: str | Path, progress: Progress | None = None
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


def scan_beside(path: str | Path, text: TextSummary) -> TextSummary:
    """Read a file that stands beside a text, line by line: it must be UTF-8 and have as many lines.

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


def _open(path: str | Path) -> IO[bytes]:
    if str(path).endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb", buffering=1 << 20)


def _read_message(path: str | Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: there is no such file. Check the path."
    reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return f"{path}: cannot be read ({reason}). Check the file."
