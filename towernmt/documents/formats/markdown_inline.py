"""Text of Markdown with its marks, each as the source writes it. A parser says what the marks are; here is where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from towernmt.documents.formats.marked_text import MarkedText, paired
from towernmt.documents.segments import Mark, Shielded

_ADDRESS = re.compile(r"<[^<>\s]+>")
_BREAK = re.compile(r"[ \t]*\\?\n[ \t]*")
_REFERENCE = re.compile(r"\[(?:[^\[\]\\]|\\.)*\]", re.DOTALL)
_FOOTNOTE = re.compile(r"(\[\^[^\]\s]+\]:?)")
_HTML = re.compile(r"<(/?)([A-Za-z][\w-]*)[^>]*?(/?)>", re.DOTALL)
_VOID = ("br", "hr", "img", "input", "wbr")


class Unknown(Exception):
    """A source that is not understood: it stays as it is."""


class Image(NamedTuple):
    """An image: its words are translated by themselves.

    Attributes:
        before, behind: the source around its words.
        number: of its words among those of a text.
    """

    before: str
    number: int
    behind: str


class Inline:
    """The text of a block.

    Attributes:
        source: the text itself.
        units: lines of text between hard breaks; each mark is a character of `marks`.
        breaks: for each line but the last, how many line ends of the source are before its end, and whether that is a
            hard break by a backslash.
        marks: their contents are sources, or an `Image`.
        images: the words of images.
        escapes: how characters are written that the source writes by an escape alone.
    """

    def __init__(self, parser: MarkdownIt, env: dict[str, Any], source: str) -> None:
        """
        Args:
            env: the links that the document defines.
        Raises:
            Unknown: it is not understood.
        """
        self.marks, self.images = MarkedText(), list[str]()
        self.units: list[list[str]] = [[""]]
        self.breaks: list[tuple[int, bool]] = []
        self._parser, self._env, self.source, self._at = parser, env, source, 0
        self._depth = 0
        tokens = list(_whole(parser.parseInline(source, env)[0].children or []))
        self._kinds = iter(paired([_tag(token) for token in tokens if _is_mark(token)]))
        escaped: dict[str, str] = {}
        raw = set[str]()
        for token in tokens:
            if token.type == "text":
                raw.update(token.content)
            elif token.type == "text_special":
                escaped.setdefault(token.content, token.markup)
            self._add(token)
        if source[self._at:].strip():
            raise Unknown
        self.escapes = {character: form for character, form in escaped.items() if character not in raw}

    def _add(self, token: Token) -> None:
        kind = token.type
        if kind == "text":
            for number, text in enumerate(_FOOTNOTE.split(self._expect(token.content))):
                self._put(text if number % 2 == 0 else self.marks.add(Shielded(text, text)))
        elif kind == "text_special":
            self._expect(token.markup)
            self._put(token.content)
        elif kind in ("softbreak", "hardbreak"):
            number = self.source.count("\n", 0, self._at)
            source = self._to(self._match(_BREAK).end())
            if kind == "hardbreak" and self._depth:
                self._put(self.marks.add(Mark("single", -1 - number, source)))
                return
            self.breaks.append((number, "\\" in source))
            if kind == "hardbreak":
                self.units.append([])
            self.units[-1].append("")
        elif kind in ("code_inline", "address"):
            source = self._to(self._end_of_code(token.markup) if kind == "code_inline" else
                              self._match(_ADDRESS).end())
            self._put(self.marks.add(Shielded(token.content, source)))
        else:
            self._depth += {"_open": 1, "_close": -1}.get(re.sub(".*(?=_)", "", kind), 0)
            mark_kind, key = next(self._kinds)
            self._put(self.marks.add(Mark(mark_kind, key, self._content(token))))   # type: ignore[arg-type]

    def _content(self, token: Token) -> Any:
        """What the source writes for a mark."""
        if token.type == "link_close":
            return self._to(self._end_of_link(self._at))
        if token.type == "image":
            return self._image(token)
        return self._expect({"link_open": "[", "html_inline": token.content}.get(token.type, token.markup))

    def _image(self, token: Token) -> str | Image:
        state = StateInline(self.source, self._parser, self._env, [])
        words = self._parser.helpers.parseLinkLabel(state, self._at + 1, False)
        if not self.source.startswith("![", self._at) or words < 0:
            raise Unknown
        begin = self._at
        source = self._to(self._end_of_link(words))
        inner = source[2:words - begin]
        if not inner.strip() or any(child.type != "text" for child in token.children or []):
            return source
        self.images.append(inner)
        return Image("![", len(self.images) - 1, source[words - begin:])

    def _end_of_link(self, place: int) -> int:
        """Behind a link, from the bracket that ends its words."""
        if not self.source.startswith("]", place):
            raise Unknown
        place += 1
        if self.source.startswith("(", place) and (end := self._end_of_target(place + 1)) is not None:
            return end
        found = _REFERENCE.match(self.source, place)
        return place if found is None else found.end()

    def _end_of_target(self, place: int) -> int | None:
        """Behind an address and title within brackets; None: there are none."""
        source, helpers = self.source, self._parser.helpers
        place = _behind_space(source, place)
        address = helpers.parseLinkDestination(source, place, len(source))
        if address.ok:
            place = _behind_space(source, address.pos)
            title = helpers.parseLinkTitle(source, place, len(source))
            if title.ok and place > address.pos:
                place = _behind_space(source, title.pos)
        return place + 1 if source.startswith(")", place) else None

    def _end_of_code(self, fence: str) -> int:
        for found in re.finditer("`+", self.source[self._at + len(fence):]):
            if found[0] == fence:
                return self._at + len(fence) + found.end()
        raise Unknown

    def _put(self, text: str) -> None:
        self.units[-1][-1] += text

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        if (found := pattern.match(self.source, self._at)) is None:
            raise Unknown
        return found

    def _expect(self, text: str) -> str:
        if not self.source.startswith(text, self._at):
            raise Unknown
        return self._to(self._at + len(text))

    def _to(self, place: int) -> str:
        """The source from here to a place, which is here from now on."""
        begin, self._at = self._at, place
        return self.source[begin:place]


def _whole(tokens: Sequence[Token]) -> Iterator[Token]:
    """Tokens, those of `<address>` as one."""
    place = 0
    while place < len(tokens):
        token = tokens[place]
        if token.type == "link_open" and token.markup == "autolink":
            text = tokens[place + 1].content
            yield Token("address", "", 0, content=text)
            place += 3
        else:
            yield token
            place += 1


def _is_mark(token: Token) -> bool:
    return token.type not in ("text", "text_special", "softbreak", "hardbreak", "code_inline", "address")


def _tag(token: Token) -> tuple[str, str] | None:
    """What a mark is for `paired`."""
    if token.type == "html_inline":
        found = _HTML.fullmatch(token.content)
        if found is None or found[3] or found[2].lower() in _VOID:
            return None
        return "close" if found[1] else "open", f"<{found[2].lower()}>"
    if token.type.endswith(("_open", "_close")):
        name, _, kind = token.type.rpartition("_")
        return kind, name
    return None


def _behind_space(source: str, place: int) -> int:
    while place < len(source) and source[place] in " \t\n":
        place += 1
    return place
