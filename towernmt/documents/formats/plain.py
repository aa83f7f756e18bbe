"""Plain text (`.txt`): each line is a segment, and so are the lines of a paragraph that was wrapped.

A text counts as wrapped at the width of its longest line if nearly all its lines end where the first word of the next
one had no more room. The translation of such a paragraph is wrapped at the same width. Other line ends stay, and so do
indents, bullets, white space and lines without a letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from towernmt.documents.formats.pieces import Pieces, Place, has_words
from towernmt.documents.formats.text_file import decoded
from towernmt.documents.formats.wrapping import NARROWEST, WIDEST, filled, fills, joined
from towernmt.documents.segments import Segment, plain_text

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|$)")
_BEFORE = re.compile(r"\s*(?:[-*+•–—·>]+\s+)*")
_ENDS = tuple(".!?:;…。！？")
_MOSTLY = 0.8
"""So large a share of the lines must end where a width had them wrapped."""


class _Line(NamedTuple):
    before: str
    core: str
    after: str
    end: str

    @property
    def begins_anew(self) -> bool:
        """Whether it has a bullet."""
        return bool(self.before.strip())

    @property
    def width(self) -> int:
        return len(self.before) + len(self.core)


def open_text(content: bytes) -> Pieces:
    """A file of plain text.

    Raises:
        DataError: it is none, or its encoding is not known.
    """
    text, encode = decoded(content)
    return Pieces(pieces_of(text), encode)


def pieces_of(text: str) -> list[str | Place]:
    """A text, taken apart into lines and wrapped paragraphs."""
    lines = list(_lines(text))
    width = _width(lines)
    pieces: list[str | Place] = []
    begin = 0
    while begin < len(lines):
        end = begin + 1
        while width and end < len(lines) and _goes_on(lines[end - 1], lines[end], width):
            end += 1
        paragraph = lines[begin:end]
        if has_words(paragraph[0].core) or len(paragraph) > 1:
            pieces += [paragraph[0].before, _place(paragraph, width), paragraph[-1].after + paragraph[-1].end]
        else:
            pieces.append("".join(paragraph[0]))
        begin = end
    return pieces


def _lines(text: str) -> Iterator[_Line]:
    for found in _LINE.finditer(text):
        line, end = found.groups()
        core = line.rstrip()
        before = "" if (begins := _BEFORE.match(core)) is None else begins[0]
        yield _Line(before, core[len(before):], line[len(core):], end)


def _width(lines: Sequence[_Line]) -> int:
    """At which width a text was wrapped; 0: at none."""
    width = max((line.width for line in lines if line.core), default=0)
    pairs = [pair for pair in pairwise(lines) if _are_of_one_block(*pair)]
    wrapped = [pair for pair in pairs if fills(" " * len(pair[0].before) + pair[0].core, pair[1].core, width)]
    goes_on = any(not line.core.endswith(_ENDS) for line, _ in wrapped)
    return width if goes_on and NARROWEST <= width <= WIDEST and len(wrapped) >= _MOSTLY * len(pairs) else 0


def _are_of_one_block(line: _Line, after: _Line) -> bool:
    """Whether two lines could be of one paragraph."""
    return bool(line.core and after.core) and not (line.after or after.begins_anew) and (
        len(after.before) == len(line.before))


def _goes_on(line: _Line, after: _Line, width: int) -> bool:
    return _are_of_one_block(line, after) and fills(" " * len(line.before) + line.core, after.core, width)


def _place(paragraph: Sequence[_Line], width: int) -> Place:
    if len(paragraph) == 1:
        return Place([(paragraph[0].core,)], lambda translated: plain_text(translated[0]))
    first, second = paragraph[:2]
    between = first.end + second.before
    room = width - len(second.before)

    def write(translated: Sequence[Segment]) -> str:
        return between.join(filled(plain_text(translated[0]), room))

    return Place([(joined([line.core for line in paragraph]).text,)], write)
