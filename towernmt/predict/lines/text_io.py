"""Lines of text as bytes; only a line feed ends a line, so that each input line has one output line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import clean_lines
from towernmt.predict.lines.output_file import output_file


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


def as_utf8(line: str) -> bytes:
    r"""Return a line of an output as UTF-8, with its line end.

    Lone surrogates, which have no UTF-8 form, become escapes: `\ud800`. Only a line of JSON may have them, in an `id`
    that it repeats, and its escapes are the same.
    """
    return line.encode("utf-8", "backslashreplace") + b"\n"


def write_lines(path: str | Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8; an existing file is replaced when all are written.

    Raises:
        DataError: the file cannot be written.
    """
    with output_file(path) as stream:
        stream.writelines(map(as_utf8, lines))
