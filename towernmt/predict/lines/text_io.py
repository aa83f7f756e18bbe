"""Lines of text as bytes; only a line feed ends a line, so that each input line has one output line."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import bounded_lines, one_line, wide_encoding
from towernmt.predict.lines.output_file import output_file

log = logging.getLogger(__name__)


def clean_lines(lines: Iterable[str | bytes], name: str = "input", first: int = 1) -> Iterator[str]:
    """Yield each line as text without control characters.

    Args:
        lines: a binary stream, or the lines.
        name: name of the input, for warnings.
        first: number of the first line.

    Raises:
        DataError: a line of a stream is longer than `LONGEST_LINE`.
    """
    if isinstance(lines, io.IOBase):
        lines = bounded_lines(cast(BinaryIO, lines), name, first)
    for number, line in enumerate(lines, start=first):
        yield clean_line(line, number, name)


def clean_line(line: str | bytes, number: int, name: str) -> str:
    r"""Return a line as text without control characters.

    Bytes are read as UTF-8. Invalid bytes become U+FFFD, with one warning per line. A final `\n` or `\r\n` and a byte
    order mark in line 1 are dropped. Every other run of control characters or line separators becomes a space.

    Args:
        line: the line.
        number: line number.
        name: name of the input, for warnings.
    """
    text = _decode(line, f"{name} line {number}") if isinstance(line, bytes) else line
    if number == 1:
        text = text.removeprefix("\ufeff")
    return one_line(text.removesuffix("\n").removesuffix("\r"))


def read_text(path: str | Path) -> list[str]:
    """Return all lines of a UTF-8 file, cleaned as by `clean_lines`.

    Raises:
        DataError: the file cannot be read.
    """
    with open_input(path) as stream:
        return list(clean_lines(stream, str(path)))


def open_input(path: str | Path) -> BinaryIO:
    """Open a file for reading as bytes.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return open(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror}).") from error


def check_readable(path: str | Path) -> None:
    """Check that a file can be read, before a model is loaded for it; pipes are not opened.

    Raises:
        DataError: the file cannot be read.
    """
    if os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path):
        open_input(path).close()


def write_lines(path: str | Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8; an existing file is replaced when all are written.

    Raises:
        DataError: the file cannot be written.
    """
    with output_file(path) as stream:
        stream.writelines(line.encode("utf-8") + b"\n" for line in lines)


def _decode(line: bytes, where: str) -> str:
    if (encoding := wide_encoding(line, beginning=False)) is not None:
        log.warning("%s: it looks like %s, but UTF-8 is expected: convert the text with iconv.", where,
                    encoding.removesuffix("LE"))
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        log.warning("%s: not valid UTF-8 from byte %d on; invalid bytes became U+FFFD.",
                    where, error.start + 1)
        return line.decode("utf-8", errors="replace")
