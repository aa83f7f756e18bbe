"""Markdown (`.md`) of CommonMark and GitHub: headings, paragraphs, lists, tables, the words of images.

Text that is not translated is copied byte for byte: front matter, code, HTML blocks, addresses, link definitions. A
wrapped paragraph is wrapped again. The translation is parsed, and characters that are read as marks are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

from markdown_it import MarkdownIt
from markdown_it.token import Token

from towernmt.core.errors import DataError
from towernmt.documents.formats.markdown_extensions import keep_extensions, without_extensions
from towernmt.documents.formats.markdown_inline import Image, Inline, Unknown, full_reference, whole_tokens
from towernmt.documents.formats.text_files import (
    NARROWEST,
    Pieces,
    Slot,
    decode_file,
    divide,
    has_words,
    join_lines,
    lines_with_ends,
    was_wrapped,
    wrapped_lines,
)
from towernmt.documents.segments import Mark, Part, Segment, Shielded, plain_text

LONGEST = 10_000
"""Maximum length of a paragraph in characters, because the parser's time grows with the square of the length."""
_FRONT_MATTER = re.compile(r"(?:---[ \t]*\r?\n(?:.*?\r?\n)??(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n(?:.*?\r?\n)??\+\+\+)"
                           r"[ \t]*(?:\r?\n|$)", re.DOTALL)
"""YAML between lines of hyphens, of which the last one may be `...`, or TOML between lines of plus signs."""
_IMAGE_DEFINITION = re.compile(r"\A( {0,3}\[[^\[\]\r\n]{1,1000}\]:[ \t]*)<?data:[^<>\s]*>?")
"""A link definition that contains an image, as Google Docs writes it; the parser gets a short address instead."""
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_DEFINITION = re.compile(r":[ \t]+")
_SPECIAL = re.compile(r"([\\`*_\[\]<>~&|$])")
_BLOCK = re.compile(r"(?=#{1,6}(?:\s|$)|[>|]|[-+*=](?:\s|$)|(?:-{2,}|={2,}|\*{3,}|_{3,})\s*$|`{3}|~{3}|:?-+:?\s*\|)"
                    r"|\d{1,9}(?=[.)](?:\s|$))")
"""Beginning of a block that is not a paragraph; a backslash after the match makes it a paragraph."""
_TOUCHING = re.compile(r"(?<!~)~~~~(?!~)")
"""The end of a strikethrough and the beginning of the next one, without a space between them."""
_LINK = re.compile(r"\0(\d+)\0(.*?)\0\1\0", re.DOTALL)
"""A `ShortLink` until its words are known: between its keys."""


def open_mdx(content: bytes) -> Pieces:
    """Return a file of MDX: Markdown with imports, exports and components.

    Raises:
        DataError: the file is not text, or its encoding is not known.
    """
    return open_markdown(content, is_mdx=True)


def open_markdown(content: bytes, is_mdx: bool = False) -> Pieces:
    """Return a file of Markdown.

    Raises:
        DataError: the file is not text, or its encoding is not known.
    """
    text, encode = decode_file(content)
    front = _FRONT_MATTER.match(text)
    begin = front.end() if front else 0
    return Pieces([text[:begin], *_MarkdownBlocks(text[begin:], is_mdx).pieces()], encode)


class _MarkdownBlocks:
    """The blocks of a text."""

    def __init__(self, text: str, is_mdx: bool) -> None:
        self._lines = lines_with_ends(text)
        parsed = [_IMAGE_DEFINITION.sub(r"\1<x>", line) for line in self._lines]
        self._check(parsed)
        self._parser = keep_extensions(
            MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join"))
        self._env: dict[str, Any] = {}
        self._tokens = MarkdownIt("commonmark").enable("table").disable("inline").parse(
            "".join(without_extensions(parsed, is_mdx)), self._env)
        for token in self._tokens:
            if token.type == "inline":
                self._check([token.content], token.map[0] if token.map else 0)

    @staticmethod
    def _check(texts: Sequence[str], first: int = 0) -> None:
        """Refuse paragraphs that the parser would need very long for."""
        for number, text in enumerate(texts, first):
            if len(text) > LONGEST:
                raise DataError(f"Line {number + 1} begins a paragraph of more than {LONGEST} characters: divide it.")

    def pieces(self) -> Iterator[str | Slot]:
        """Yield the slots, and the text between them."""
        line = column = 0
        for slot, (first, begin), (last, end) in self._slots():
            yield self._between((line, column), (first, begin))
            yield slot
            line, column = last, end
        yield self._between((line, column), (len(self._lines), 0))

    def _between(self, begin: tuple[int, int], end: tuple[int, int]) -> str:
        if begin[0] == end[0]:
            return "" if begin[0] == len(self._lines) else self._lines[begin[0]][begin[1]:end[1]]
        middle = "".join(self._lines[begin[0] + 1:end[0]])
        return self._lines[begin[0]][begin[1]:] + middle + (self._lines[end[0]][:end[1]] if end[1] else "")

    def _slots(self) -> Iterator[tuple[Slot, tuple[int, int], tuple[int, int]]]:
        """Yield each slot with its start and end, as line and column."""
        row, column = 0, 0
        for before, token in zip([None, *self._tokens], self._tokens, strict=False):
            if token.type == "tr_open" and token.map:
                row, column = token.map[0], 0
            if token.type != "inline" or before is None or not has_words(token.content):
                continue
            if before.type in ("th_open", "td_open"):
                found = self._cell(row, column, token.content)
                column = found[1] if found else column
                groups = [[(row, *found)]] if found else []
            else:
                groups = self._definitions(
                    self._spans(token, before.type == "heading_open" and before.markup.startswith("#")))
            for spans in groups:
                if (slot := self._slot(spans, before.type in ("th_open", "td_open"))) is not None:
                    yield slot, (spans[0][0], spans[0][1]), (spans[-1][0], spans[-1][2])

    def _definitions(self, spans: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
        """Return the lines of a block, a list for each definition in it, without the colon before it."""
        groups: list[list[tuple[int, int, int]]] = []
        for number, begin, end in spans:
            match = _DEFINITION.match(self._lines[number], begin, end) if groups else None
            if match or not groups:
                groups.append([])
            groups[-1].append((number, match.end() if match else begin, end))
        return groups

    def _spans(self, token: Token, is_atx: bool) -> list[tuple[int, int, int]]:
        """Return line, start and end of each line of a block in the source; an empty list if they are not found."""
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
        if match := _TASK.match(self._lines[number], begin, end):
            spans[0] = (number, match.end(), end)
        return spans

    def _cell(self, row: int, column: int, content: str) -> tuple[int, int] | None:
        """Return start and end of a cell in its row; None if it is not found."""
        line, core = self._lines[row].rstrip("\r\n"), content.replace("|", "\\|")
        begin = line.find(core, column)
        while begin >= 0:
            if (line[begin + len(core):].lstrip() or "|").startswith("|"):
                return begin, begin + len(core)
            begin = line.find(core, begin + 1)
        return None

    def _slot(self, spans: Sequence[tuple[int, int, int]], is_cell: bool) -> Slot | None:
        """Return the slot of a block; None if its source is not understood."""
        texts = [self._lines[number][begin:end] for number, begin, end in spans]
        ends = [self._lines[number][end:] + self._lines[after][:begin]
                for (number, _, end), (after, begin, _) in zip(spans, spans[1:], strict=False)]
        breaks = [re.match("[ \t]*", end)[0] for end in ends]  # type: ignore[index]
        source = "\n".join(text + space for text, space in zip(texts, [*breaks, ""], strict=True))
        try:
            inline = Inline(self._parser, self._env, source.replace("\\|", "|") if is_cell else source)
        except Unknown:
            return None
        return _Written(inline, ends, self._reads, is_cell).slot()

    def _reads(self, source: str) -> str:
        """Return the words and names of marks that the parser reads in a source, without white space."""
        tokens = self._parser.parseInline(source, self._env)[0].children or []
        return _squeezed("".join(map(_read, whole_tokens(tokens))))


class _Written:
    """Writes the translated text of a block."""

    def __init__(self, inline: Inline, ends: Sequence[str], reads: Callable[[str], str], is_cell: bool) -> None:
        self._inline, self._ends, self._reads, self._is_cell = inline, ends, reads, is_cell
        self._special = re.compile(_SPECIAL.pattern.replace("|", "")) if is_cell else _SPECIAL

    def slot(self) -> Slot | None:
        """Return a slot for the texts between hard breaks and the words of images; None if it has no words."""
        segments = [self._inline.marks.segment(join_lines(unit).text) for unit in self._inline.units]
        images: list[Segment] = [(words,) for words in self._inline.images]
        if not any(has_words("".join(part for part in segment if isinstance(part, str)))
                   for segment in (*segments, *images)):
            return None
        return Slot([*segments, *images], self._write)

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
        """Return the source of a translated text between hard breaks."""
        rows = self._understood(segment, unit, images)
        within = self._ends[0].lstrip(" \t") if self._ends else "\n"      # line ends in addresses and code
        between = [ends[min(number, len(ends) - 1)] if ends else within for number in range(len(rows) - 1)]
        return "".join(part for row, end in zip(rows, [*between, ""], strict=True)
                       for part in (row.replace("\n", within), end))

    def _understood(self, segment: Segment, unit: Sequence[str], images: Sequence[str]) -> list[str]:
        """Return the lines of a text in the first variant that the parser reads correctly."""
        first: list[str] = []
        for variant in self._variants(segment):
            lines = _wrapped(self._flat(variant), unit)
            meant = self._meant(variant)
            for is_escaped in (False, True):
                rows = self._rows(lines, images, is_escaped)
                text = "\n".join(rows)
                touching = _TOUCHING.findall(text)      # GitHub reads no strikethrough there, unlike other parsers
                if self._reads(text) == meant and len(touching) <= len(_TOUCHING.findall(self._inline.source)):
                    return rows
            first = first or rows
        return first

    def _variants(self, segment: Segment) -> Iterator[Segment]:
        """Yield the segment, and then variants with less emphasis.

        Markdown cannot write emphasis that begins or ends within a word or next to some signs, as in some translations.
        """
        yield segment
        segment = _merged(segment)
        yield segment
        segment = tuple(part._replace(content=part.content.replace("_", "*")) if _is_emphasis(part) else part
                        for part in segment)
        yield segment
        yield _merged(_trimmed(segment))
        yield tuple(part for part in segment if not _is_emphasis(part))

    def _meant(self, segment: Segment) -> str:
        """Return the result that the parser should read; see `_MarkdownBlocks._reads`."""
        return _squeezed("".join(part if isinstance(part, str) else _meant(part) if isinstance(part, Shielded)
                                 else _named(self._inline.names.get((part.kind, part.key), "")) for part in segment))

    def _rows(self, lines: Sequence[str], images: Sequence[str], is_escaped: bool) -> list[str]:
        """Return the source of lines, escaped so that they begin like a block only if their source does."""
        rows = []
        sources = self._inline.source.split("\n")
        begins_so = _BLOCK.match(sources[0]) is not None
        for number, line in enumerate(lines):
            row = self._row(line, images, is_escaped)
            match = None if self._inline.marks.get(line[:1]) else _BLOCK.match(row)
            is_block = match is not None and not (begins_so if number == 0 else row in sources)
            rows.append(f"{match[0]}\\{row[match.end():]}" if match is not None and is_block else row)
        links = self._inline.short_links
        return _LINK.sub(lambda link: links[int(link[1])].written(link[2]), "\n".join(rows)).split("\n")

    def _row(self, line: str, images: Sequence[str], is_escaped: bool) -> str:
        written = []
        for part in self._inline.marks.segment(line):
            if isinstance(part, str):
                written.append(self._special.sub(r"\\\1", part) if is_escaped else
                               "".join(self._inline.escapes.get(character, character) for character in part))
            elif isinstance(part.content, Image):
                before, number, after, is_short = part.content
                words, source = re.sub(r"(?<!\\)([\[\]])", r"\\\1", images[number]), self._inline.images[number]
                written.append(before + words + (full_reference(source) if is_short and words != source else after))
            else:
                if part.content == "[" and re.search(r"(?<!\\)!$", "".join(written[-1:])):
                    written[-1] = written[-1][:-1] + "\\!"     # not an image
                if isinstance(part, Mark) and part.kind != "single" and part.key in self._inline.short_links:
                    written.append(f"\0{part.key}\0")
                else:
                    written.append(part.content)
        return "".join(written)

    def _flat(self, segment: Segment) -> str:
        """Return a segment as text, with white space moved out of emphasis, because `** word**` is not emphasis."""
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
    """Divide a text into lines: wrapped at the width of the source, or as many lines as in the source."""
    width = max(map(len, unit))
    may_begin = _may_begin if all(map(_may_begin, unit[1:])) else bool
    if len(unit) > 1 and width >= NARROWEST and all(was_wrapped(*pair, width) for pair in pairwise(unit)):
        return wrapped_lines(text, width, may_begin)
    return [line for line in divide(text, join_lines(unit), may_begin) if line] or [""]


def _may_begin(line: str) -> bool:
    """Return whether a line within a paragraph may begin like this."""
    match = _BLOCK.match(line)
    return match is None or match[0] not in ("", "1")       # a list may interrupt a paragraph only if it begins with 1


def _read(token: Token) -> str:
    """Return the words of a token, or its name if it is a mark."""
    if token.type in ("text", "text_special", "code_inline", "address"):
        return token.content
    if token.type == "kept":
        return _named(token.content)
    if token.type in ("softbreak", "hardbreak"):
        return ""
    return _named(token.content if token.type == "html_inline" else token.type)


def _meant(part: Shielded) -> str:
    """Return what the parser should read for code, an address or an extension; see `_read`."""
    return _named(part.text) if part.content == part.text else part.text


def _named(name: str) -> str:
    return f"\0{name}\0" if name else ""


def _is_emphasis(part: Part) -> TypeGuard[Mark]:
    return (isinstance(part, Mark) and part.kind != "single" and isinstance(part.content, str) and part.content != ""
            and not part.content.strip("*_~"))


def _merged(segment: Segment) -> Segment:
    """Return the segment, with adjacent pairs of the same emphasis joined."""
    result: list[Part] = []
    keys: dict[int, int] = {}       # of the second pair: the key of the first
    for part in segment:
        before = result[-1] if result else None
        if (isinstance(part, Mark) and isinstance(before, Mark) and _is_emphasis(part) and _is_emphasis(before)
                and (before.kind, part.kind) == ("close", "open") and before.content == part.content):
            keys[part.key] = before.key
            result.pop()
        elif isinstance(part, Mark) and part.kind == "close" and part.key in keys:
            result.append(part._replace(key=keys[part.key]))
        else:
            result.append(part)
    return tuple(result)


def _trimmed(segment: Segment) -> Segment:
    """Return the segment, with signs and white space at the edges of emphasis moved out of it."""
    result: list[Part] = []
    for part in segment:
        before = result[-1] if result else ""
        if isinstance(part, str) and _is_emphasis(before) and before.kind == "open":
            text = part.lstrip(_signs_of(part))
            result[-1:] = [part[:len(part) - len(text)], before, text] if text else [before, part]
        elif _is_emphasis(part) and part.kind == "close" and isinstance(before, str):
            text = before.rstrip(_signs_of(before))
            result[-1:] = [text, part, before[len(text):]] if text else [before, part]
        else:
            result.append(part)
    return tuple(part for part in result if part != "")


def _signs_of(text: str) -> str:
    return "".join(character for character in text if not character.isalnum())


def _squeezed(text: str) -> str:
    return "".join(text.split())
