"""Texts of HTML and XML as tokens: text, tags, and what is neither; each by its place, so that it can be written again.

Nothing is refused but a text with more tags than anybody writes: what is no tag is text. The time is linear in the
text's length, whatever it holds: what was looked for in vain is not looked for again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from towernmt.core.errors import DataError

MOST_TAGS = 300_000
_TAG = re.compile(r"<(?=[a-zA-Z/!?])")
_NAME = re.compile(r"[a-zA-Z_:][^\s/>]*")
_BEFORE_ATTRIBUTE = re.compile(r"[\s/]*")
_ATTRIBUTE = re.compile(r"([^\s>/][^\s>/=]*)(\s*=\s*)?")
_UNQUOTED = re.compile(r"[^\s>]*")
RAW = ("script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title")
"""Elements of HTML in which there are no tags but their own end."""


class Attribute(NamedTuple):
    """An attribute of a tag: its name in lower case, and where its value begins and ends, without quotes."""

    name: str
    start: int
    end: int


class Token(NamedTuple):
    """A piece of a text.

    Attributes:
        kind: "other" is a comment, a declaration, an instruction or a CDATA section.
        start, end: where it is.
        name: of a tag; in lower case in HTML.
        attributes: of an opening tag.
        is_empty: whether an opening tag ends with `/>`.
    """

    kind: Literal["text", "open", "close", "other"]
    start: int
    end: int
    name: str = ""
    attributes: tuple[Attribute, ...] = ()
    is_empty: bool = False


class Tokens:
    """The tokens of a text.

    Args:
        text: HTML or XML, a whole document or a part of one.
        xml: whether it is XML: names are as they are written, and no element is without tags inside.
    """

    def __init__(self, text: str, xml: bool = False) -> None:
        self._text, self._xml = text, xml
        self._missing: set[str] = set()     # what does not come any more
        self._plain_tags = False            # tags end at the next `>`, quoted or not

    def __iter__(self) -> Iterator[Token]:
        """One behind the other; they make the whole text.

        Raises:
            DataError: there are too many.
        """
        place, tags = 0, 0
        while place < len(self._text):
            token = self._next_tag(place)
            if token is None:
                yield Token("text", place, len(self._text))
                return
            if token.start > place:
                yield Token("text", place, token.start)
            yield token
            place = token.end
            tags += 1
            if tags > MOST_TAGS:
                raise DataError(f"The text has more than {MOST_TAGS} tags: send it in parts.")
            if token.kind == "open" and token.name in RAW and not self._xml:
                end = self._end_of_raw(token.name, place)
                if end > place:
                    yield Token("text", place, end)
                place = end

    def _next_tag(self, place: int) -> Token | None:
        while (found := _TAG.search(self._text, place)) is not None:
            token = self._tag_at(found.start())
            if token is not None:
                return token
            if ">" in self._missing:
                return None
            place = found.end()
        return None

    def _tag_at(self, start: int) -> Token | None:
        """The tag that begins at a `<`; None: it is text."""
        text = self._text
        for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), *((("<?", "?>"),) if self._xml else ())):
            if text.startswith(opening, start):
                return Token("other", start, self._find(closing, start + len(opening), len(text)))
        if text[start + 1] in "!?":
            return self._declaration(start)
        if text[start + 1] == "/":
            end = self._find(">", start)
            name = _NAME.match(text, start + 2, end)
            return None if not end else Token("close" if name else "other", start, end, self._named(name))
        name = _NAME.match(text, start + 1)
        found = None if self._plain_tags else self._attributes(name.end() if name else start + 1, len(text))
        if found is None:
            self._plain_tags = True
            end = self._find(">", start)
            if not end:
                return None
            name = _NAME.match(text, start + 1, end - 1)
            found = self._attributes(name.end() if name else start + 1, end) or ((), end)
        attributes, end = found
        return Token("open", start, end, self._named(name), attributes, text.startswith("/>", end - 2))

    def _named(self, name: re.Match[str] | None) -> str:
        if name is None:
            return ""
        return name[0].rstrip(">") if self._xml else name[0].rstrip(">").lower()

    def _declaration(self, start: int) -> Token | None:
        """`<!DOCTYPE ...>`, with what stands in brackets; and the like."""
        end = self._find(">", start)
        bracket = self._text.find("[", start, end)
        if self._xml and end and bracket >= 0:
            inner = self._find("]", bracket)
            end = self._find(">", inner or bracket)
        return Token("other", start, end) if end else None

    def _attributes(self, place: int, limit: int) -> tuple[tuple[Attribute, ...], int] | None:
        """The attributes of a tag, and where it ends; None: it does not end."""
        found: list[Attribute] = []
        text = self._text
        while True:
            place = _BEFORE_ATTRIBUTE.match(text, place, limit).end()  # type: ignore[union-attr]
            if place >= limit:
                return None
            if text[place] == ">":
                return tuple(found), place + 1
            name = _ATTRIBUTE.match(text, place, limit)
            if name is None:
                return None
            place = name.end()
            if name[2] is None:
                continue
            quote = text[place:place + 1]
            end = self._find(quote, place + 1) - 1 if quote in ('"', "'") else -1
            if 0 <= end < limit:
                found.append(Attribute(name[1].lower(), place + 1, end))
                place = end + 1
            else:
                value = _UNQUOTED.match(text, place, limit)
                found.append(Attribute(name[1].lower(), place, value.end()))  # type: ignore[union-attr]
                place = value.end()  # type: ignore[union-attr]

    def _find(self, what: str, start: int, missing: int = 0) -> int:
        """Behind the next `what`; `missing` if there is none."""
        if what in self._missing:
            return missing
        place = self._text.find(what, start)
        if place < 0:
            self._missing.add(what)
            return missing
        return place + len(what)

    def _end_of_raw(self, name: str, place: int) -> int:
        if name in self._missing:
            return len(self._text)
        found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(self._text, place)
        if found is None:
            self._missing.add(name)
        return found.start() if found else len(self._text)
