r"""Lines of text files: reading in chunks, decoding, and a random number for each line.

One sentence a line, UTF-8, files of any size in constant memory. Lines end at "\n" alone: a "\r" before it belongs
to the line end; U+2028, form feeds and similar characters do not split a line. A byte order mark at the start is
skipped, a last line without "\n" counts, and files whose names end in ".gz" are decompressed.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import shlex
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, remedy
from towernmt.dataflow.text.clean_text import one_line

log = logging.getLogger(__name__)
T = TypeVar("T")
LINES_PER_CHUNK = 4096
LONGEST_LINE = 1 << 24
"""Maximum length of a line in bytes. A longer line is not text (/dev/zero), and would fill the memory."""
_MOST_RETURNS = 20      # carriage returns in a line without a line feed; if it has more, they probably end the lines
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
OLD_OFFICE = b"\xd0\xcf\x11\xe0"
"""Beginning of files of old Microsoft Office programs, such as `.doc`, and of files with a password."""
_DOCUMENTS = {b"%PDF-": "a PDF file", b"PK\x03\x04": "a Word, OpenDocument or zip file",
              OLD_OFFICE: "an old Microsoft Office file (such as .doc) or a protected one"}
"""Kinds of files that are not text, by their first bytes."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
"""Programs that compress files, by the first bytes of their files."""


@dataclass(frozen=True)
class Chunk:
    """Complete lines of a file, which another process may decode.

    Attributes:
        path: path of the file, for error messages.
        first_line: number of the first line, from 1.
        lines: number of lines.
        data: the bytes, including line ends.
    """

    path: str
    first_line: int
    lines: int
    data: bytes

    def decode(self) -> list[str]:
        """Return the lines without their line ends.

        Raises:
            DataError: the text is not UTF-8; the message names the file, the line and the byte. Or the file is a
                document, or its lines end in carriage returns alone.
        """
        data = self.data
        if self.first_line == 1:
            self._refuse_documents()
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
            if self.first_line == 1 and "\n" not in text and text.count("\r") > _MOST_RETURNS:
                raise DataError(f"{self.path}: the lines end in carriage returns alone, but only a line feed ends a "
                                f"line. Convert the file: tr '\\r' '\\n' {self._conversion('unix')}")
            lines = [line.removesuffix("\r") for line in lines]
        return lines

    def _refuse_documents(self) -> None:
        for beginning, kind in _DOCUMENTS.items():
            if self.data.startswith(beginning):
                raise DataError(f"{self.path}: this is {kind}, but a text file with one sentence per line is expected. "
                                "Convert it to text, and a scanned document by text recognition (OCR); for documents "
                                "and their translations, see `towernmt pairs`.")

    def _conversion(self, suffix: str) -> str:
        """Return the end of a shell command that reads the file, and writes its result next to it with a suffix."""
        return f"< {shlex.quote(self.path)} > {shlex.quote(f'{self.path}.{suffix}')}"

    def _encoding_message(self, data: bytes, position: int) -> str:
        encoding = wide_encoding(data, self.first_line == 1)
        if encoding is not None and not data.startswith(_UTF16_BOMS):
            return (f"{self.path} line {self.first_line}: the text is {encoding} (without a byte order mark), but "
                    f"UTF-8 is expected. Convert it: iconv -f {encoding} -t UTF-8 {self._conversion('utf8')}")
        if self.first_line == 1 and data.startswith(_UTF16_BOMS):
            return (f"{self.path}: the file is UTF-16 (it starts with its byte order mark), but UTF-8 is "
                    f"expected. Convert it: iconv -f UTF-16 -t UTF-8 {self._conversion('utf8')}")
        compression = next((name for start, name in _COMPRESSED.items() if data.startswith(start)), None)
        if self.first_line == 1 and compression is not None:
            return f"{self.path}: the file is compressed by {compression}, but plain text is expected. Decompress it."
        line = self.first_line + data.count(b"\n", 0, position)
        if b"\0" in data:
            return (f"{self.path} line {line}: this is binary data, but a text file with one sentence per line is "
                    "expected. Check the path.")
        column = position - (data.rfind(b"\n", 0, position) + 1) + 1
        return (f"{self.path} line {line}: byte {column} of the line (0x{data[position]:02x}) is not UTF-8. "
                f"Convert the file (for example: iconv -f ISO-8859-1 -t UTF-8) or fix that line.")


def wide_encoding(data: bytes, beginning: bool = True) -> str | None:
    """Return the encoding if text is probably UTF-16 or UTF-32 although it is valid UTF-8, or None.

    The high bytes of most alphabets are control characters, which are then every second byte.

    Args:
        data: complete lines.
        beginning: whether they are the first lines of a file.
    """
    if len(data) < 4 or b"\0" not in data:
        return None
    high = np.frombuffer(data, np.uint8) < 0x09
    if high.mean() > 0.7:
        return "UTF-32"
    even, odd = high[::2].mean(), high[1::2].mean()
    if max(even, odd) < 0.8:
        return None
    # Lines of little-endian text are cut after the first byte of the line end, so later lines begin with a high byte.
    return "UTF-16LE" if odd > even else "UTF-16BE" if beginning else "UTF-16"


def check_rereadable(path: str | Path) -> None:
    """Check that a file can be read several times.

    Raises:
        DataError: the path is a pipe or a device, such as `<(cat train.de)` or /dev/stdin.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return      # opening the file raises the error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(f"{path}: a pipe or a device can be read only once, but this text is read several times. Write "
                        "it to a file.")


def read_chunks(path: str | Path, lines: int = LINES_PER_CHUNK) -> Iterator[Chunk]:
    """Yield the file in chunks of `lines` lines; the last chunk may be shorter.

    Raises:
        DataError: the file is missing or cannot be read, or a line is longer than `LONGEST_LINE`.
    """
    first_line = 1
    try:
        with _open_text(path) as file:
            bounded = bounded_lines(file, str(path))
            while block := list(islice(bounded, lines)):
                yield Chunk(str(path), first_line, len(block), b"".join(block))
                first_line += len(block)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(_read_message(path, error)) from error


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the decoded lines of a file, one by one.

    Raises:
        DataError: the file is missing, unreadable, or not UTF-8.
    """
    for chunk in read_chunks(path):
        yield from chunk.decode()


def bounded_lines(stream: IO[bytes], name: str, first: int = 1) -> Iterator[bytes]:
    """Yield the lines of a stream with their line ends, of bounded length.

    Args:
        stream: the text, from the beginning of a line.
        name: name of the file, for the error message.
        first: number of the first line.

    Raises:
        DataError: a line is longer than `LONGEST_LINE`. The lines before it are yielded first.
    """
    for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=first):
        if len(line) > LONGEST_LINE:
            raise line_too_long(f"{name} line {number}")
        yield line


def line_too_long(location: str) -> DataError:
    """Return the error for a line that is longer than `LONGEST_LINE`; `location` is the file and the line."""
    return DataError(f"{location}: the line is longer than {LONGEST_LINE >> 20} MiB. Check that this is a text with "
                     "one sentence a line.")


def is_compressed(path: str | Path) -> bool:
    """Return whether a file is decompressed while it is read."""
    return str(path).lower().endswith(".gz")


def _open_text(path: str | Path) -> IO[bytes]:
    if is_compressed(path):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb", buffering=1 << 20)


def _read_message(path: str | Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: the file does not exist. Check the path."
    reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    advice = remedy(error, "Check the file.") if isinstance(error, OSError) else "Check the file."
    return f"{path}: cannot be read ({reason}). {advice}"


@overload
def clean_lines(lines: Iterable[str | bytes], name: str = "input", first: int = 1) -> Iterator[str]: ...


@overload
def clean_lines(lines: Iterable[str | bytes | T], name: str = "input", first: int = 1) -> Iterator[str | T]: ...


def clean_lines(lines: Iterable[Any], name: str = "input", first: int = 1) -> Iterator[Any]:
    """Yield each line as text without control characters.

    Args:
        lines: a stream, or the lines; items of other types are yielded unchanged.
        name: name of the input, for warnings.
        first: number of the first line.

    Raises:
        DataError: a line of a binary stream is longer than `LONGEST_LINE`.
    """
    if isinstance(lines, io.IOBase) and not isinstance(lines, io.TextIOBase):
        lines = bounded_lines(cast(BinaryIO, lines), name, first)
    for number, line in enumerate(lines, start=first):
        yield clean_line(line, number, name) if isinstance(line, (str, bytes)) else line


def clean_line(line: str | bytes, number: int, name: str) -> str:
    r"""Return a line as text without control characters.

    Bytes are read as UTF-8. Invalid bytes become U+FFFD, with one warning per line. A final `\n` or `\r\n` and a byte
    order mark in line 1 are dropped. Every other run of control characters or line separators becomes a space.

    Args:
        line: the line.
        number: line number.
        name: name of the input, for warnings.
    """
    text = _decode_line(line, f"{name} line {number}") if isinstance(line, bytes) else line
    if number == 1:
        text = text.removeprefix("\ufeff")
    return one_line(text.removesuffix("\n").removesuffix("\r"))


def _decode_line(line: bytes, where: str) -> str:
    if (encoding := wide_encoding(line, beginning=False)) is not None:
        log.warning("%s: it looks like %s, but UTF-8 is expected: convert the text with iconv.", where,
                    encoding.removesuffix("LE"))
    if not line.endswith(b"\n") and line.count(b"\r") > _MOST_RETURNS:
        log.warning("%s: its carriage returns become spaces. If they end the lines of this text, convert it: "
                    "tr '\\r' '\\n'", where)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        log.warning("%s: not valid UTF-8 from byte %d on; invalid bytes became U+FFFD.",
                    where, error.start + 1)
        return line.decode("utf-8", errors="replace")


def line_hash(line_numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Return uint64 `[lines]`, uniform: SplitMix64 (Steele et al., 2014) of the line number, keyed by the seed."""
    with np.errstate(over="ignore"):
        key = _mix(np.asarray([seed], np.int64).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        return _mix(key + line_numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
