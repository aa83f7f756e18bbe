"""Markdown (`.md`), as CommonMark and GitHub have it: headings, paragraphs, lists, tables, the words of images.

What is not translated stays byte for byte: front matter, code, HTML blocks, addresses, definitions of links. A wrapped
paragraph is wrapped again. What is written is read once more: where words would be taken for marks, they get escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from towernmt.core.errors import DataError
from towernmt.documents.formats.markdown_inline import Image, Inline, Unknown
from towernmt.documents.formats.pieces import Pieces, Place, has_words
from towernmt.documents.formats.text_file import decoded
from towernmt.documents.formats.wrapping import NARROWEST, divided, filled, fills, joined
from towernmt.documents.segments import Mark, Segment, plain_text

LONGEST = 10_000
"""Characters of a paragraph: the time for one grows with their square."""
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?:.*?\r?\n)?\1[ \t]*(?:\r?\n|$)", re.DOTALL)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_SPECIAL = re.compile(r"([\\`*_\[\]<>~&|])")
_BLOCK = re.compile(r"(?=#{1,6}(?:\s|$)|[>|]|[-+*=](?:\s|$)|(?:-{2,}|={2,}|\*{3,}|_{3,})\s*$|`{3}|~{3}|:?-+:?\s*\|)"
                    r"|\d{1,9}(?=[.)](?:\s|$))")
"""How a block begins that is no paragraph; a backslash behind it makes it one."""


def open_markdown(content: bytes) -> Pieces:
    """A file of Markdown.

    Raises:
        DataError: it is no text, or its encoding is not known.
    """
    text, encode = decoded(content)
    front = _FRONT_MATTER.match(text)
    begin = front.end() if front else 0
    return Pieces([text[:begin], *_Blocks(text[begin:]).pieces()], encode)


class _Blocks:
    """A text, block by block."""

    def __init__(self, text: str) -> None:
        self._lines = _LINE.findall(text)
        self._check(self._lines)
        self._parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
        self._env: dict[str, Any] = {}
        self._tokens = MarkdownIt("commonmark").enable("table").disable("inline").parse(text, self._env)
        for token in self._tokens:
            if token.type == "inline":
                self._check([token.content], token.map[0] if token.map else 0)

    @staticmethod
    def _check(texts: Sequence[str], first: int = 0) -> None:
        """Refuse what takes parsers very long."""
        for number, text in enumerate(texts, first):
            if len(text) > LONGEST:
                raise DataError(f"Line {number + 1} begins a paragraph of more than {LONGEST} characters: divide it.")

    def pieces(self) -> Iterator[str | Place]:
        """Places, and what is between them."""
        line = column = 0
        for place, (first, begin), (last, end) in self._places():
            yield self._between((line, column), (first, begin))
            yield place
            line, column = last, end
        yield self._between((line, column), (len(self._lines), 0))

    def _between(self, begin: tuple[int, int], end: tuple[int, int]) -> str:
        if begin[0] == end[0]:
            return "" if begin[0] == len(self._lines) else self._lines[begin[0]][begin[1]:end[1]]
        middle = "".join(self._lines[begin[0] + 1:end[0]])
        return self._lines[begin[0]][begin[1]:] + middle + (self._lines[end[0]][:end[1]] if end[1] else "")

    def _places(self) -> Iterator[tuple[Place, tuple[int, int], tuple[int, int]]]:
        """Each place, and where it begins and ends: line and column."""
        row, column = 0, 0
        for before, token in zip([None, *self._tokens], self._tokens, strict=False):
            if token.type == "tr_open" and token.map:
                row, column = token.map[0], 0
            if token.type != "inline" or before is None or not has_words(token.content):
                continue
            if before.type in ("th_open", "td_open"):
                found = self._cell(row, column, token.content)
                column = found[1] if found else column
                spans = [(row, *found)] if found else []
            else:
                spans = self._spans(token, before.type == "heading_open" and before.markup.startswith("#"))
            if spans and (place := self._place(spans, before.type in ("th_open", "td_open"))) is not None:
                yield place, (spans[0][0], spans[0][1]), (spans[-1][0], spans[-1][2])

    def _spans(self, token: Token, is_atx: bool) -> list[tuple[int, int, int]]:
        """Where the lines of a block are in the source: line, begin, end; none where they are not found."""
        spans = []
        first = token.map[0] if token.map else 0
        for number, content in enumerate(token.content.split("\n"), first):
            line, core = self._lines[number].rstrip("\r\n"), content.strip()
            if is_atx:
                hashes = line.find("#")
                begin = line.find(core, hashes + len(line[hashes:]) - len(line[hashes:].lstrip("#")))
            else:
                begin = len(line.rstrip()) - len(core) if line.rstrip().endswith(core) else -1
            if begin < 0:
                return []
            spans.append((number, begin, begin + len(core)))
        number, begin, end = spans[0]
        if found := _TASK.match(self._lines[number], begin, end):
            spans[0] = (number, found.end(), end)
        return spans

    def _cell(self, row: int, column: int, content: str) -> tuple[int, int] | None:
        """Where a cell is in its row."""
        line, core = self._lines[row].rstrip("\r\n"), content.replace("|", "\\|")
        begin = line.find(core, column)
        while begin >= 0:
            if (line[begin + len(core):].lstrip() or "|").startswith("|"):
                return begin, begin + len(core)
            begin = line.find(core, begin + 1)
        return None

    def _place(self, spans: Sequence[tuple[int, int, int]], is_cell: bool) -> Place | None:
        """The place of a block; None where its source is not understood."""
        texts = [self._lines[number][begin:end] for number, begin, end in spans]
        ends = [self._lines[number][end:] + self._lines[after][:begin]
                for (number, _, end), (after, begin, _) in zip(spans, spans[1:], strict=False)]
        breaks = [re.match("[ \t]*", end)[0] for end in ends]  # type: ignore[index]
        source = "\n".join(text + space for text, space in zip(texts, [*breaks, ""], strict=True))
        try:
            inline = Inline(self._parser, self._env, source.replace("\\|", "|") if is_cell else source)
        except Unknown:
            return None
        return _Written(inline, ends, self._reads, is_cell).place()

    def _reads(self, source: str) -> str:
        """What readers see of a source: its words, code and breaks."""
        return _shown(self._parser.parseInline(source, self._env)[0].children or [])


class _Written:
    """How the text of a block is written."""

    def __init__(self, inline: Inline, ends: Sequence[str], reads: Callable[[str], str], is_cell: bool) -> None:
        self._inline, self._ends, self._reads, self._is_cell = inline, ends, reads, is_cell
        self._special = re.compile(_SPECIAL.pattern.replace("|", "")) if is_cell else _SPECIAL

    def place(self) -> Place | None:
        """The place: its segments are the texts between hard breaks, and the words of images; None without words."""
        segments = [self._inline.marks.segment(joined(unit).text) for unit in self._inline.units]
        images: list[Segment] = [(words,) for words in self._inline.images]
        if not any(has_words("".join(part for part in segment if isinstance(part, str)))
                   for segment in (*segments, *images)):
            return None
        return Place([*segments, *images], self._write)

    def _write(self, translated: Sequence[Segment]) -> str:
        images = list(map(plain_text, translated[len(self._inline.units):]))
        breaks = ["\\" * has_backslash + self._ends[number] for number, has_backslash in self._inline.breaks]
        written = ""
        for unit, segment in zip(self._inline.units, translated, strict=False):
            ends, breaks = breaks[:len(unit)], breaks[len(unit):]
            written += self._unit(unit, segment, ends, images)
            written += ends[-1] if len(ends) == len(unit) else ""
        return written.replace("|", "\\|") if self._is_cell else written

    def _unit(self, unit: Sequence[str], segment: Segment, ends: Sequence[str], images: Sequence[str]) -> str:
        """A text between hard breaks."""
        lines = _wrapped(self._flat(segment), unit)
        rows = self._rows(lines, images, False)
        if _squeezed(self._reads("\n".join(rows))) != _squeezed(plain_text(segment)):
            rows = self._rows(lines, images, True)
        within = self._ends[0].lstrip(" \t") if self._ends else "\n"      # line ends in addresses and code
        between = [ends[min(number, len(ends) - 1)] if ends else within for number in range(len(rows) - 1)]
        return "".join(part for row, end in zip(rows, [*between, ""], strict=True)
                       for part in (row.replace("\n", within), end))

    def _rows(self, lines: Sequence[str], images: Sequence[str], is_escaped: bool) -> list[str]:
        """Lines as they are written; they begin like a block only if their source does."""
        rows = []
        sources = self._inline.source.split("\n")
        begins_so = _BLOCK.match(sources[0]) is not None
        for number, line in enumerate(lines):
            row = self._row(line, images, is_escaped)
            found = None if self._inline.marks.get(line[:1]) else _BLOCK.match(row)
            is_block = found is not None and not (begins_so if number == 0 else row in sources)
            rows.append(f"{found[0]}\\{row[found.end():]}" if found is not None and is_block else row)
        return rows

    def _row(self, line: str, images: Sequence[str], is_escaped: bool) -> str:
        written = []
        for part in self._inline.marks.segment(line):
            if isinstance(part, str):
                written.append(self._special.sub(r"\\\1", part) if is_escaped else
                               "".join(self._inline.escapes.get(character, character) for character in part))
            elif isinstance(part.content, Image):
                before, number, behind = part.content
                written.append(before + re.sub(r"(?<!\\)([\[\]])", r"\\\1", images[number]) + behind)
            else:
                if part.content == "[" and re.search(r"(?<!\\)!$", "".join(written[-1:])):
                    written[-1] = written[-1][:-1] + "\\!"     # no image
                written.append(part.content)
        return "".join(written)

    def _flat(self, segment: Segment) -> str:
        """A segment as one string, with white space outside of emphasis: `** word**` would be none."""
        flat = self._inline.marks.text(segment)
        sides: dict[str, str] = {"open": "", "close": ""}
        for character in set(flat):
            mark = self._inline.marks.get(character)
            if isinstance(mark, Mark) and mark.kind != "single" and not str(mark.content).strip("*_~"):
                sides[mark.kind] += character
        if sides["open"]:
            flat = re.sub(rf"([{sides['open']}]+)(\s+)", r"\2\1", flat)
        return re.sub(rf"(\s+)([{sides['close']}]+)", r"\2\1", flat) if sides["close"] else flat


def _wrapped(text: str, unit: Sequence[str]) -> list[str]:
    """A text in lines as its source had them: filled to the same width, or as many."""
    width = max(map(len, unit))
    may_begin = _may_begin if all(map(_may_begin, unit[1:])) else bool
    if len(unit) > 1 and width >= NARROWEST and all(fills(*pair, width) for pair in zip(unit, unit[1:], strict=False)):
        return filled(text, width, may_begin)
    return [line for line in divided(text, joined(unit), may_begin) if line] or [""]


def _may_begin(line: str) -> bool:
    """Whether a line within a paragraph may begin so."""
    found = _BLOCK.match(line)
    return found is None or found[0] not in ("", "1")       # lists that begin with other numbers interrupt nothing


def _shown(tokens: Sequence[Token]) -> str:
    return "".join(" " if token.type in ("softbreak", "hardbreak") else "" if token.type in ("html_inline", "image")
                   else token.content for token in tokens)


def _squeezed(text: str) -> str:
    return "".join(text.split())
