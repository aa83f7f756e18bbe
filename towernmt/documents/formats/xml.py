"""XML, complete documents and fragments: text is translated, attributes are not.

Elements among text are marks within a segment; elements whose parent has only elements begin a segment. Entities of
HTML, and entities that the document declares, are read as characters. Other entities, and those of several
characters, are not translated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from towernmt.documents.formats.markup_document import MarkupDocument
from towernmt.documents.formats.markup_tokens import Token, Tokens


@dataclass(frozen=True)
class XmlSettings:
    """Names of the elements of each kind.

    Attributes:
        ignored: elements that are not translated.
        splitting: elements that begin a segment.
        joining: elements that never begin a segment.
        by_structure: whether elements whose parent contains only elements begin a segment too, unless an element of the
            same name is among text elsewhere.
    """

    ignored: Collection[str] = ()
    splitting: Collection[str] = ()
    joining: Collection[str] = ()
    by_structure: bool = True


class XmlDocument(MarkupDocument):
    """An XML document or fragment.

    Args:
        text: the document or fragment.
        settings: kinds of the elements.
        by_line: whether a line break in the text ends a segment.

    Raises:
        DataError: a declared entity is a file or contains entities, or the text has too many tags.
    """

    def __init__(self, text: str, settings: XmlSettings = XmlSettings(), by_line: bool = False) -> None:
        super().__init__()
        self._text, self._settings, self._by_line = text, settings, by_line
        self._tokens = list(Tokens(text, xml=True))
        self.declare_entities(text, self._tokens)
        ends = _ends(self._tokens)
        self._splitting = self._begin_segments(ends)
        index = 0
        while index < len(self._tokens):
            index = self._take(index, ends)
        self.add_block(())

    def _take(self, index: int, ends: dict[int, int]) -> int:
        """Process a token, and return the index of the next one."""
        token = self._tokens[index]
        source = self._text[token.start:token.end]
        if token.kind == "open" and self._is_kept(token):
            return self._keep(index, ends.get(index, index))
        if token.kind == "text":
            self._take_text(source)
        elif token.kind == "other":
            if source.startswith("<![CDATA["):
                self.add_shielded(source[9:].removesuffix("]]>"), source)
            else:
                self.add_nothing((source,))
        elif token.name in self._splitting:
            self.add_block((source,))
        elif token.kind == "close":
            self.close_element(token.name, source)
        elif token.is_empty and token.name.lower() == "wbr":
            self.add_nothing((source,))
        elif token.is_empty:
            self.add_single((source,))
        else:
            self.open_element((source,), token.name)
        return index + 1

    def _take_text(self, source: str) -> None:
        for line in source.splitlines(keepends=True) if self._by_line else (source,):
            self.add_text_with_entities(line)
            if self._by_line and line[-1:] in "\r\n":
                self.add_block(())

    def _is_kept(self, token: Token) -> bool:
        return token.name in self._settings.ignored or any(
            attribute.name == "translate" and self._text[attribute.start:attribute.end] == "no"
            for attribute in token.attributes)

    def _keep(self, index: int, end: int) -> int:
        """Process an element that is not translated, and return the index of the token after it."""
        inside = self._tokens[index:end + 1]
        source = self._text[inside[0].start:inside[-1].end]
        if inside[0].name in self._splitting:
            self.add_block((source,))
        else:
            words = "".join(self._text[one.start:one.end] for one in inside if one.kind == "text")
            self.add_shielded(words, source)
        return end + 1

    def _begin_segments(self, ends: dict[int, int]) -> Collection[str]:
        """Return the names of the elements that begin a segment."""
        settings = self._settings
        if not settings.by_structure:
            return set(settings.splitting) - set(settings.joining)
        names: set[str] = set()
        among_text: set[str] = set()
        children: list[set[str]] = [set()]      # names of the children of each open element
        has_text = [False]
        after = [len(self._tokens)]
        for index, token in enumerate(self._tokens):
            while index >= after[-1]:
                _leave(children, has_text, after, among_text)
            if token.kind == "text":
                has_text[-1] |= not self._text[token.start:token.end].isspace()
            elif token.kind == "open":
                names.add(token.name)
                children[-1].add(token.name)
                if index in ends:
                    children.append(set())
                    has_text.append(False)
                    after.append(ends[index])
        while after:
            _leave(children, has_text, after, among_text)
        return (names - among_text | set(settings.splitting)) - set(settings.joining)


def _leave(children: list[set[str]], has_text: list[bool], after: list[int], among_text: set[str]) -> None:
    """End an element: if it contains text, its children are among text."""
    after.pop()
    names, has = children.pop(), has_text.pop()
    if has:
        among_text |= names


def _ends(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the indices of end tags, by the indices of their start tags, for elements that have an end tag."""
    opened: list[tuple[str, int]] = []
    names: Counter[str] = Counter()
    ends = {}
    for index, token in enumerate(tokens):
        if token.kind == "open" and not token.is_empty:
            opened.append((token.name, index))
            names[token.name] += 1
        elif token.kind == "close" and names[token.name]:
            while True:
                name, begin = opened.pop()
                names[name] -= 1
                if name == token.name:
                    ends[begin] = index
                    break
    return ends
