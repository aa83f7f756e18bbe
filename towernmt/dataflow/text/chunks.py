"""Reading text files: one sentence a line, UTF-8, any size, in flat memory.

The first step of the data's way. Lines end at "\n" alone (a "\r" before it belongs to the line end;
U+2028, form feeds and the like do not split a line), a byte order mark at the start is skipped, a last
line without "\n" counts, and names that end in ".gz" are decompressed on the way.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, cast

import numpy as np

from towernmt.core.errors import DataError

LINES_PER_CHUNK = 4096
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


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


def is_compressed(path: str | Path) -> bool:
    """Whether a file is decompressed while it is read."""
    return str(path).endswith(".gz")


def _open(path: str | Path) -> IO[bytes]:
    if is_compressed(path):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb", buffering=1 << 20)


def _read_message(path: str | Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: there is no such file. Check the path."
    reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return f"{path}: cannot be read ({reason}). Check the file."
