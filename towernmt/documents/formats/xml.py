"""XML, whole documents and parts of them: text is translated, attributes are not.

Elements that stand among text are marks within a segment; those whose parent has only elements begin one. Entities are
never expanded: the five that all XML has, and numbers, are characters, and all others stay as they are written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from towernmt.core.errors import DataError
from towernmt.documents.formats.markup.document import MarkupDocument
from towernmt.documents.formats.markup.tokens import Token, Tokens

_OWN_ENTITY = re.compile(r"(&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});)[\w:.-]{1,100};)")
_DECLARES_ENTITY = re.compile(r"<!ENTITY\s")


@dataclass(frozen=True)
class XmlSettings:
    """What elements are, by their names.

    Attributes:
        ignored: they are not translated.
        splitting: they begin a segment.
        joining: they do not, whatever stands around them.
        by_structure: elements whose parent has only elements begin a segment, unless those of the same name stand among
            text elsewhere; else those in `splitting` alone.
    """

    ignored: Collection[str] = ()
    splitting: Collection[str] = ()
    joining: Collection[str] = ()
    by_structure: bool = True


class XmlDocument(MarkupDocument):
    """A text of XML.

    Args:
        text: a document, or a part of one.
    Raises:
        DataError: it declares entities, or has too many tags.
    """

    def __init__(self, text: str, settings: XmlSettings = XmlSettings()) -> None:
        super().__init__()
        self._text, self._settings = text, settings
        self._tokens = list(Tokens(text, xml=True))
        for token in self._tokens:
            if token.kind == "other" and _DECLARES_ENTITY.search(text, token.start, token.end):
                raise DataError("The XML declares entities, which are not taken here: leave the declaration out.")
        ends = _ends(self._tokens)
        self._splitting = self._begin_segments(ends)
        self._opened: list[tuple[str, int]] = []
        self._names: Counter[str] = Counter()
        place = 0
        while place < len(self._tokens):
            place = self._take(place, ends)
        self._block(())

    def _take(self, place: int, ends: dict[int, int]) -> int:
        """Take a token; the place of the next."""
        token = self._tokens[place]
        source = self._text[token.start:token.end]
        if token.kind == "open" and self._is_kept(token):
            return self._keep(place, ends.get(place, place))
        if token.kind == "text":
            self._take_text(source)
        elif token.kind == "other":
            if source.startswith("<![CDATA["):
                self.add_shielded(source[9:].removesuffix("]]>"), source)
            else:
                self.add_nothing((source,))
        elif token.name in self._splitting:
            self._block((source,))
        elif token.kind == "close":
            self._close(token.name, source)
        elif token.is_empty:
            self.add_single((source,))
        else:
            self._opened.append((token.name, self.open((source,))))
            self._names[token.name] += 1
        return place + 1

    def _take_text(self, source: str) -> None:
        for place, text in enumerate(_OWN_ENTITY.split(source)):
            if place % 2:
                self.add_shielded(text, text)
            elif text:
                self.add_text(text)

    def _close(self, name: str, source: str) -> None:
        if not self._names[name]:
            self.add_nothing((source,))
            return
        while True:
            opened, key = self._opened.pop()
            self._names[opened] -= 1
            self.close(key, (source,) if opened == name else ())
            if opened == name:
                return

    def _block(self, pieces: Sequence[str]) -> None:
        while self._opened:
            self.close(self._opened.pop()[1])
        self._names.clear()
        self.add_between(pieces)

    def _is_kept(self, token: Token) -> bool:
        return token.name in self._settings.ignored or any(
            attribute.name == "translate" and self._text[attribute.start:attribute.end] == "no"
            for attribute in token.attributes)

    def _keep(self, place: int, end: int) -> int:
        """Take an element that is not translated; the place behind it."""
        inside = self._tokens[place:end + 1]
        source = self._text[inside[0].start:inside[-1].end]
        if inside[0].name in self._splitting:
            self._block((source,))
        else:
            words = "".join(self._text[one.start:one.end] for one in inside if one.kind == "text")
            self.add_shielded(words, source)
        return end + 1

    def _begin_segments(self, ends: dict[int, int]) -> Collection[str]:
        """The names of the elements that begin a segment."""
        settings = self._settings
        if not settings.by_structure:
            return set(settings.splitting) - set(settings.joining)
        names: set[str] = set()
        among_text: set[str] = set()
        children: list[set[str]] = [set()]      # of the elements that are open
        has_text = [False]
        behind = [len(self._tokens)]
        for place, token in enumerate(self._tokens):
            while place >= behind[-1]:
                _leave(children, has_text, behind, among_text)
            if token.kind == "text":
                has_text[-1] |= not self._text[token.start:token.end].isspace()
            elif token.kind == "open":
                names.add(token.name)
                children[-1].add(token.name)
                if place in ends:
                    children.append(set())
                    has_text.append(False)
                    behind.append(ends[place])
        while behind:
            _leave(children, has_text, behind, among_text)
        return (names - among_text | set(settings.splitting)) - set(settings.joining)


def _leave(children: list[set[str]], has_text: list[bool], behind: list[int], among_text: set[str]) -> None:
    """An element is over: if it has text, its children stand among text."""
    behind.pop()
    names, has = children.pop(), has_text.pop()
    if has:
        among_text |= names


def _ends(tokens: Sequence[Token]) -> dict[int, int]:
    """The places of the tags that close others, by the places of these. An element that is not closed has none."""
    opened: list[tuple[str, int]] = []
    names: Counter[str] = Counter()
    ends = {}
    for place, token in enumerate(tokens):
        if token.kind == "open" and not token.is_empty:
            opened.append((token.name, place))
            names[token.name] += 1
        elif token.kind == "close" and names[token.name]:
            while True:
                name, begin = opened.pop()
                names[name] -= 1
                if name == token.name:
                    ends[begin] = place
                    break
    return ends
