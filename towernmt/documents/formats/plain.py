"""Plain text (`.txt`): each line, each cell of a line with tabs, or each wrapped paragraph is a segment.

A text is wrapped at the width of its longest line if nearly all its lines end where the first word of the next line
does not fit. The translation of a wrapped paragraph is wrapped at the same width. Other line ends are kept, and so
are indents, bullets, white space and lines without a letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from towernmt.documents.formats.text_files import (
    NARROWEST,
    WIDEST,
    Pieces,
    Slot,
    decode_file,
    has_words,
    join_lines,
    was_wrapped,
    wrapped_lines,
)
from towernmt.documents.segments import Segment, plain_text

_LINES_AND_CELLS = re.compile(r"(\r\n|\r|\n|\t)")


class Lines(Pieces):
    """The text of a request; line ends, tabs and blank lines are kept.

    Args:
        text: the text.
        by_line: whether each line, or each cell of a line with tabs, is a segment; otherwise the complete text is one
            segment.
    """

    def __init__(self, text: str, by_line: bool = True) -> None:
        pieces = _LINES_AND_CELLS.split(text) if by_line else [text]
        super().__init__([_line_slot(piece) if piece.strip() else piece for piece in pieces],
                         lambda written: written.encode("utf-8", "surrogatepass"))


def _line_slot(line: str) -> Slot:
    return Slot([(line,)], lambda translated: plain_text(translated[0]))


_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|$)")
_BEFORE = re.compile(r"\s*(?:[-*+•–—·>]+\s+)*")
_ENDS = tuple(".!?:;…。！？؟۔।॥։።။។")
_MOSTLY = 0.8
"""Minimum share of lines that end at the width, in a wrapped text."""


class _Line(NamedTuple):
    before: str
    core: str
    after: str
    end: str

    @property
    def begins_anew(self) -> bool:
        """Whether the line has a bullet."""
        return bool(self.before.strip())

    @property
    def width(self) -> int:
        return len(self.before) + len(self.core)


def open_text(content: bytes) -> Pieces:
    """Return a plain text file as a document.

    Raises:
        DataError: the content is not text, or its encoding is unknown.
    """
    text, encode = decode_file(content)
    return Pieces(text_pieces(text), encode)


def text_pieces(text: str) -> list[str | Slot]:
    """Divide a text into lines and wrapped paragraphs."""
    lines = list(_lines(text))
    width = _width(lines)
    pieces: list[str | Slot] = []
    begin = 0
    while begin < len(lines):
        end = begin + 1
        while width and end < len(lines) and _continues(lines[end - 1], lines[end], width):
            end += 1
        paragraph = lines[begin:end]
        if has_words(paragraph[0].core) or len(paragraph) > 1:
            slots = [_slot(paragraph, width)] if len(paragraph) > 1 else _cells(paragraph[0].core)
            pieces += [paragraph[0].before, *slots, paragraph[-1].after + paragraph[-1].end]
        else:
            pieces.append("".join(paragraph[0]))
        begin = end
    return pieces


def _lines(text: str) -> Iterator[_Line]:
    for match in _LINE.finditer(text):
        line, end = match.groups()
        core = line.rstrip()
        before = "" if (begins := _BEFORE.match(core)) is None else begins[0]
        yield _Line(before, core[len(before):], line[len(core):], end)


def _width(lines: Sequence[_Line]) -> int:
    """Return the width at which a text is wrapped; 0 if it is not wrapped."""
    width = max((line.width for line in lines if line.core), default=0)
    pairs = [pair for pair in pairwise(lines) if _are_of_one_block(*pair)]
    wrapped = [pair for pair in pairs if was_wrapped(" " * len(pair[0].before) + pair[0].core, pair[1].core, width)]
    has_open_end = any(not line.core.endswith(_ENDS) for line, _ in wrapped)
    return width if has_open_end and NARROWEST <= width <= WIDEST and len(wrapped) >= _MOSTLY * len(pairs) else 0


def _are_of_one_block(line: _Line, after: _Line) -> bool:
    """Return whether two lines could belong to one paragraph."""
    return bool(line.core and after.core) and not (line.after or after.begins_anew) and (
        len(after.before) == len(line.before))


def _continues(line: _Line, after: _Line, width: int) -> bool:
    return _are_of_one_block(line, after) and was_wrapped(" " * len(line.before) + line.core, after.core, width)


def _cells(line: str) -> list[str | Slot]:
    """Return the cells of a line, and the tabs between them."""
    return [_line_slot(piece) if has_words(piece) else piece for piece in re.split(r"(\t)", line)]


def _slot(paragraph: Sequence[_Line], width: int) -> Slot:
    first, second = paragraph[:2]
    between = first.end + second.before
    width_of_text = width - len(second.before)

    def write(translated: Sequence[Segment]) -> str:
        return between.join(wrapped_lines(plain_text(translated[0]), width_of_text))

    return Slot([(join_lines([line.core for line in paragraph]).text,)], write)
