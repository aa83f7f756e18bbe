"""The tokens and the entities of text with tags (HTML, XML).

- Tokens are text, tags, and other constructs, each with its position, so that it can be written again. A malformed tag
  is text. The time is linear in the length of the text for any content, since a failed search is not repeated.
- Entities are read as characters, and written as in the source. No file is fetched, and the text of an entity cannot
  contain further entities, so entities cannot enlarge the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from html.entities import html5
from typing import Literal, NamedTuple

from towernmt.core.errors import DataError

_ENTITY = re.compile(r"&(?:#[0-9]{1,7};?|#[xX][0-9a-fA-F]{1,6};?|[a-zA-Z][a-zA-Z0-9]{1,31};?)")
_ALWAYS = {"&": "&amp;", "<": "&lt;"}
_DECLARATION = re.compile(r"<!ENTITY\s+(?P<name>[^\s\"'>]{1,100})\s+(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)')\s*>")
_DECLARES = re.compile(r"<!ENTITY\s")
_CHARACTER = re.compile(r"&(?:#[0-9]{1,7}|#x[0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos);")
LONGEST_ENTITY = 200
"""Maximum length of the text that a document declares for an entity."""


def declared_entities(declaration: str) -> dict[str, str]:
    """Return the entities that a document type declares, by name, with the text of each.

    Raises:
        DataError: an entity is a file, contains other entities, which is a security risk, or is too long.
    """
    found: dict[str, str] = {}
    index = 0
    while (begin := _DECLARES.search(declaration, index)) is not None:
        match = _DECLARATION.match(declaration, begin.start())
        if match is None:
            raise DataError("The XML declares entities that refer to files or to the document type, which are not "
                            "read: remove these declarations.")
        text = match["double"] if match["double"] is not None else match["single"]
        plain = _CHARACTER.sub(lambda one: html.unescape(one[0]), text)
        if set("&%<") & set(_CHARACTER.sub("", text)) or len(plain) > LONGEST_ENTITY:
            raise DataError(f"The XML declares the entity {match['name']}, which contains entities or tags, or has "
                            f"more than {LONGEST_ENTITY} characters: replace the entity by its text.")
        found.setdefault(match["name"], plain)
        index = match.end()
    return found


class Spelling:
    """The characters that a text writes as entities.

    Args:
        declared: the text of each entity that the document declares, by name.
    """

    def __init__(self, declared: Mapping[str, str] | None = None) -> None:
        self._entities: dict[str, str] = dict(_ALWAYS)
        self._declared = declared or {}

    def is_character(self, name: str) -> bool:
        """Return whether an entity is known and represents at most three characters."""
        return len(self._declared.get(name, html5.get(f"{name};", "...."))) <= 3

    def read(self, text: str) -> str:
        """Return the characters of a text, and remember its entities."""
        if "&" not in text:
            return text
        return _ENTITY.sub(self._character, text)

    def write(self, text: str, quote: str = "") -> str:
        """Return a text with the entities that the source uses, and escape the quote around an attribute's value."""
        entities = {**self._entities, **({quote: html.escape(quote)} if quote else {})}
        return re.sub(f"[{re.escape(''.join(entities))}]", lambda match: entities[match[0]], text)

    def _character(self, match: re.Match[str]) -> str:
        character = self._declared.get(match[0][1:].removesuffix(";"), "") or html.unescape(match[0])
        if len(character) == 1 and match[0].endswith(";"):
            self._entities[character] = match[0]
        return character


MOST_TAGS = 300_000
_TAG = re.compile(r"<(?=[a-zA-Z/!?])")
_NAME = re.compile(r"[a-zA-Z_:][^\s/>]*")
_BEFORE_ATTRIBUTE = re.compile(r"[\s/]*")
_ATTRIBUTE = re.compile(r"([^\s>/][^\s>/=]*)(\s*=\s*)?")
_UNQUOTED = re.compile(r"[^\s>]*")
RAW = ("script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title")
"""Elements of HTML that contain no tags except their end tag."""


class Attribute(NamedTuple):
    """An attribute of a tag: its name in lower case, and start and end of its value, without quotes."""

    name: str
    start: int
    end: int


class Token(NamedTuple):
    """A token of a text.

    Attributes:
        kind: "other" is a comment, a declaration, an instruction or a CDATA section.
        start, end: range of the token in the text.
        name: name of a tag, in lower case in HTML.
        attributes: attributes of a start tag.
        is_empty: whether a start tag ends with `/>`.
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
        text: an HTML or XML document or fragment.
        xml: whether the text is XML: names are case-sensitive, and all elements may contain tags.
        xhtml: whether the text is XHTML: an element that ends with `/>` is empty, and a document type may declare
            entities.
    """

    def __init__(self, text: str, xml: bool = False, xhtml: bool = False) -> None:
        self._text, self._xml, self._xhtml = text, xml, xhtml
        self._missing: set[str] = set()     # strings that do not occur in the rest of the text
        self._plain_tags = False            # whether tags end at the next `>`, even in quotes

    def __iter__(self) -> Iterator[Token]:
        """Yield adjacent tokens that cover the complete text.

        Raises:
            DataError: the text has too many tags.
        """
        index, tags = 0, 0
        while index < len(self._text):
            token = self._next_tag(index)
            if token is None:
                yield Token("text", index, len(self._text))
                return
            if token.start > index:
                yield Token("text", index, token.start)
            yield token
            index = token.end
            tags += 1
            if tags > MOST_TAGS:
                raise DataError(f"The text has more than {MOST_TAGS} tags: send it in parts.")
            if token.kind == "open" and token.name in RAW and not self._xml and not (self._xhtml and token.is_empty):
                end = self._end_of_raw(token.name, index)
                if end > index:
                    yield Token("text", index, end)
                index = end

    def _next_tag(self, index: int) -> Token | None:
        while (match := _TAG.search(self._text, index)) is not None:
            token = self._tag_at(match.start())
            if token is not None:
                return token
            if ">" in self._missing:
                return None
            index = match.end()
        return None

    def _tag_at(self, start: int) -> Token | None:
        """Return the tag that begins at a `<`; None if it is text."""
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
        """Return a declaration such as `<!DOCTYPE ...>`, including its part in brackets."""
        end = self._find(">", start)
        bracket = self._text.find("[", start, end)
        if (self._xml or self._xhtml) and end and bracket >= 0:
            inner = self._find("]", bracket)
            end = self._find(">", inner or bracket)
        return Token("other", start, end) if end else None

    def _attributes(self, index: int, limit: int) -> tuple[tuple[Attribute, ...], int] | None:
        """Return the attributes of a tag, and the index after it; None if the tag does not end."""
        found: list[Attribute] = []
        text = self._text
        while True:
            index = _BEFORE_ATTRIBUTE.match(text, index, limit).end()  # type: ignore[union-attr]
            if index >= limit:
                return None
            if text[index] == ">":
                return tuple(found), index + 1
            name = _ATTRIBUTE.match(text, index, limit)
            if name is None:
                return None
            index = name.end()
            if name[2] is None:
                continue
            quote = text[index:index + 1]
            end = self._find(quote, index + 1) - 1 if quote in ('"', "'") else -1
            if 0 <= end < limit:
                found.append(Attribute(name[1].lower(), index + 1, end))
                index = end + 1
            else:
                value = _UNQUOTED.match(text, index, limit)
                found.append(Attribute(name[1].lower(), index, value.end()))  # type: ignore[union-attr]
                index = value.end()  # type: ignore[union-attr]

    def _find(self, what: str, start: int, missing: int = 0) -> int:
        """Return the index after the next `what`; `missing` if it does not occur."""
        if what in self._missing:
            return missing
        index = self._text.find(what, start)
        if index < 0:
            self._missing.add(what)
            return missing
        return index + len(what)

    def _end_of_raw(self, name: str, index: int) -> int:
        if name in self._missing:
            return len(self._text)
        match = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(self._text, index)
        if match is None:
            self._missing.add(name)
        return match.start() if match else len(self._text)
