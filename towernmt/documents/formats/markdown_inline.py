"""Inline text of Markdown with the source of each mark.

The parser returns the marks of a text; this module finds their positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from towernmt.documents.formats.text_files import MarkedText, pair_tags
from towernmt.documents.segments import Mark, Shielded

_ADDRESS = re.compile(r"<[^<>\s]+>")
_BREAK = re.compile(r"[ \t]*\\?\n[ \t]*")
_REFERENCE = re.compile(r"\[(?:[^\[\]\\]|\\.)*\]", re.DOTALL)
_HTML = re.compile(r"<(/?)([A-Za-z][\w-]*)[^>]*?(/?)>", re.DOTALL)
_NOTHING = re.compile(r"<wbr\s*/?>|<!--", re.IGNORECASE)
"""HTML that does not divide a word."""
_RAISED = re.compile(r"<(?:sup|sub)[\s>]", re.IGNORECASE)
_VOID = ("br", "hr", "img", "input", "wbr")
_SHORT_ENDS = ("]", "][]")
"""Ends of links and images whose words are the label of a link definition."""


class Unknown(Exception):
    """A source that is not understood, and so is not translated."""


class Image(NamedTuple):
    """An image, whose words are a separate segment.

    Attributes:
        before, after: the source around the words.
        number: index among the images of the text.
        is_short: whether the words are the label of a link definition, as in `![our logo]`.
    """

    before: str
    number: int
    after: str
    is_short: bool


class ShortLink(NamedTuple):
    """A link whose words are the label of a link definition, as in `[the manual]` and `[the manual][]`.

    Attributes:
        words: the source of the words.
        end: the source after the words.
    """

    words: str
    end: str

    def written(self, words: str) -> str:
        """Return the source of the link with other words, which name the definition if they are not its label."""
        return f"[{words}{self.end if words == self.words else full_reference(self.words)}"


class Inline:
    """The text of a block.

    Args:
        parser: the parser.
        env: the link definitions of the document.
        source: the source of the text.

    Attributes:
        source: the source of the text.
        units: the lines between hard breaks, with characters of `marks` for marks.
        breaks: for each line except the last one, the number of earlier line ends in the source, and whether the line
            ends with a hard break by a backslash.
        marks: the marks; their contents are the source or an `Image`.
        images: the words of images.
        short_links: the links whose words are the label of a link definition, by the key of their marks.
        escapes: the escapes of characters that the source always escapes.
        names: the parser's name of each mark by kind and key; for HTML, the tag.

    Raises:
        Unknown: the source is not understood.
    """

    def __init__(self, parser: MarkdownIt, env: dict[str, Any], source: str) -> None:
        self.marks, self.images = MarkedText(), list[str]()
        self.units: list[list[str]] = [[""]]
        self.breaks: list[tuple[int, bool]] = []
        self.names: dict[tuple[str, int], str] = {}
        self.short_links: dict[int, ShortLink] = {}
        self._link_begin = 0        # index of the words of the last link
        self._parser, self._env, self.source, self._at = parser, env, source, 0
        self._depth = 0
        tokens = list(whole_tokens(parser.parseInline(source, env)[0].children or []))
        self._kinds = iter(pair_tags([_tag(token) for token in tokens if _is_mark(token)]))
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
        self.escapes = {character: form for character, form in escaped.items()
                        if character not in raw or character == "$"}    # two bare dollars may enclose mathematics

    def _add(self, token: Token) -> None:
        kind = token.type
        if kind == "text":
            self._put(self._expect(token.content))
        elif kind == "kept":
            self._put(self.marks.add(Shielded(token.content, self._expect(token.content))))
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
            begin = self._at
            content = self._content(token)
            if kind == "link_open":
                self._link_begin = self._at
            elif kind == "link_close" and content in _SHORT_ENDS:
                self.short_links[key] = ShortLink(self.source[self._link_begin:begin], content)
            self.names[mark_kind, key] = token.content if kind == "html_inline" else kind
            if kind == "html_inline" and _NOTHING.match(token.content):
                self.names["open", key], self.names["close", key] = token.content, ""
                self._put(self.marks.add(Mark("open", key, content)) + self.marks.add(Mark("close", key, "")))
                return
            is_raised = _RAISED.match(token.content) is not None and kind == "html_inline"
            self._put(self.marks.add(Mark(mark_kind, key, content, is_raised)))   # type: ignore[arg-type]

    def _content(self, token: Token) -> Any:
        """Return the source of a mark, or an `Image`."""
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
        after = source[words - begin:]
        return Image("![", len(self.images) - 1, after, after in _SHORT_ENDS)

    def _end_of_link(self, index: int) -> int:
        """Return the index after a link, for the index of the bracket that ends its words."""
        if not self.source.startswith("]", index):
            raise Unknown
        index += 1
        if self.source.startswith("(", index) and (end := self._end_of_target(index + 1)) is not None:
            return end
        match = _REFERENCE.match(self.source, index)
        return index if match is None else match.end()

    def _end_of_target(self, index: int) -> int | None:
        """Return the index after the address and title of a link; None if they are missing."""
        source, helpers = self.source, self._parser.helpers
        index = _after_space(source, index)
        address = helpers.parseLinkDestination(source, index, len(source))
        if address.ok:
            index = _after_space(source, address.pos)
            title = helpers.parseLinkTitle(source, index, len(source))
            if title.ok and index > address.pos:
                index = _after_space(source, title.pos)
        return index + 1 if source.startswith(")", index) else None

    def _end_of_code(self, fence: str) -> int:
        for match in re.finditer("`+", self.source[self._at + len(fence):]):
            if match[0] == fence:
                return self._at + len(fence) + match.end()
        raise Unknown

    def _put(self, text: str) -> None:
        self.units[-1][-1] += text

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        if (match := pattern.match(self.source, self._at)) is None:
            raise Unknown
        return match

    def _expect(self, text: str) -> str:
        if not self.source.startswith(text, self._at):
            raise Unknown
        return self._to(self._at + len(text))

    def _to(self, index: int) -> str:
        """Return the source up to an index, and move the position there."""
        begin, self._at = self._at, index
        return self.source[begin:index]


def full_reference(label: str) -> str:
    """Return the end of a link or an image that names a link definition, whose label has no line ends in Markdown."""
    return f"][{' '.join(label.split())}]"


def whole_tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens, with those of `<address>` as one."""
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.type == "link_open" and token.markup == "autolink":
            text = tokens[index + 1].content
            yield Token("address", "", 0, content=text)
            index += 3
        else:
            yield token
            index += 1


def _is_mark(token: Token) -> bool:
    return token.type not in ("text", "text_special", "softbreak", "hardbreak", "code_inline", "address", "kept")


def _tag(token: Token) -> tuple[str, str] | None:
    """Return the kind and name of a mark, for `pair_tags`."""
    if token.type == "html_inline":
        match = _HTML.fullmatch(token.content)
        if match is None or match[3] or match[2].lower() in _VOID:
            return None
        return "close" if match[1] else "open", f"<{match[2].lower()}>"
    if token.type.endswith(("_open", "_close")):
        name, _, kind = token.type.rpartition("_")
        return kind, name
    return None


def _after_space(source: str, index: int) -> int:
    while index < len(source) and source[index] in " \t\n":
        index += 1
    return index
