"""The lines of a stored text, from any byte on, decoded block by block.

The rules are those of `dataflow.text.chunks`: UTF-8, lines end at "\\n" alone, a "\\r" before it belongs to the line
end, a byte order mark at the start is skipped, and a last line without "\\n" counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from towernmt.core.errors import DataError
from towernmt.dataflow.storage.compression import UnreadableError, read_bytes
from towernmt.dataflow.storage.stored_files import Storage, StoredFile
from towernmt.dataflow.text.chunks import Chunk

LONGEST_LINE = 1 << 24


class LineBlock(NamedTuple):
    """Some consecutive lines.

    Attributes:
        texts: the lines without their ends.
        ends: for each line, the place right after it, as a byte offset into the (decompressed) text.
    """

    texts: list[str]
    ends: list[int]


def line_blocks(storage: Storage, file: StoredFile, offset: int = 0, lines: int = 0) -> Iterator[LineBlock]:
    """The lines after byte `offset` of the (decompressed) text, in blocks of one line or more.

    Args:
        storage: where the file is.
        file: which one.
        offset: the beginning of a line.
        lines: how many lines lie before it, for messages.
    Raises:
        DataError: the file is gone, changed, damaged, cut off, or not UTF-8; the message names the line. The lines
            before it are yielded first.
    """
    for data in whole_lines(storage, file, offset, lines):
        try:
            texts = Chunk(file.name, lines + 1, 0, data).decode()
        except DataError:
            good = _lines_before_an_error(data)
            if good:
                yield LineBlock(Chunk(file.name, lines + 1, 0, good).decode(), _line_ends(good, offset))
            raise
        yield LineBlock(texts, _line_ends(data, offset))
        offset += len(data)
        lines += len(texts)


def count_lines(storage: Storage, file: StoredFile) -> int:
    """How many lines a text has, without decoding them.

    Raises:
        DataError: the file is gone, changed, damaged or cut off.
    """
    lines, last = 0, b"\n"
    try:
        for data in read_bytes(storage, file):
            lines += data.count(b"\n")
            last = data[-1:]
    except UnreadableError as error:
        raise error.at(f"{file.name} near line {lines + 1}") from error
    return lines + (last != b"\n")


def whole_lines(storage: Storage, file: StoredFile, offset: int, lines: int) -> Iterator[bytes]:
    """The bytes after byte `offset` of the (decompressed) text, in pieces of whole lines.

    Args:
        storage, file, offset, lines: as of `line_blocks`.
    Raises:
        DataError: the file is gone, changed, damaged or cut off, or a line is longer than any sentence.
    """
    begun: list[bytes] = []        # the line whose end has not come yet
    begun_bytes = 0
    try:
        for data in read_bytes(storage, file, offset):
            cut = data.rfind(b"\n") + 1
            if cut:
                whole = b"".join([*begun, data[:cut]])
                begun, begun_bytes = [], 0
                lines += whole.count(b"\n")
                yield whole
            begun.append(data[cut:])
            begun_bytes += len(data) - cut
            if begun_bytes > LONGEST_LINE:
                raise UnreadableError(f"the line is longer than {LONGEST_LINE >> 20} MiB",
                                      "Check that this is a text with one sentence a line.")
    except UnreadableError as error:
        raise error.at(f"{file.name} near line {lines + 1}") from error
    if begun_bytes:
        yield b"".join(begun)


def _lines_before_an_error(data: bytes) -> bytes:
    """The whole lines before the first byte that is not UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[:data.rfind(b"\n", 0, error.start) + 1]
    return data


def _line_ends(data: bytes, offset: int) -> list[int]:
    ends: list[int] = (np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + (offset + 1)).tolist()
    if not data.endswith(b"\n"):
        ends.append(offset + len(data))
    return ends
