"""A document of text with tags (HTML, XML): the segments to translate, and the source between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from towernmt.documents.formats.markup_tokens import Spelling, Token, declared_entities
from towernmt.documents.segments import Mark, Part, Segment, Shielded

_OWN_ENTITY = re.compile(r"(&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});)[\w:.-]{1,100};)")
_RAISED = ("sup", "sub", "superscript", "subscript")
"""Elements of HTML, DocBook and DITA with raised or lowered text."""


class Value(NamedTuple):
    """The translated value of an attribute.

    Attributes:
        segment: index of its segment.
        quote: quote around the value in the source; "" for none.
    """

    segment: int
    quote: str


Piece = str | Value
"""A part of the written text: source text or a translated value."""


class _Segment(NamedTuple):
    """A segment with its source.

    Attributes:
        parts: the segment to translate.
        source: the source text.
        spelling: the entities in the source.
    """

    parts: Segment
    source: Sequence[Piece]
    spelling: Spelling


class MarkupDocument:
    """A text with tags, to which a format adds segments and the text between them.

    Attributes:
        segments: the segments to translate.
        entities: the text of each entity that the document declares, by name.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._pieces: list[Piece | _SegmentPosition] = []
        self._parts: list[Part] = []
        self._source: list[Piece] = []
        self.entities: dict[str, str] = {}
        self._spelling = Spelling(self.entities)
        self._has_words = False
        self._keys = 0
        self._opened: list[tuple[str, int]] = []        # names and keys of the open elements in this segment
        self._names: Counter[str] = Counter()

    @property
    def segments(self) -> list[Segment]:
        """The segments to translate."""
        return [segment.parts for segment in self._segments]

    def text(self, translated: Sequence[Segment]) -> str:
        """Return the text with translated segments."""
        return "".join(self._written(self._pieces, translated))

    def written(self, translated: Sequence[Segment]) -> bytes:
        """Return the text with translated segments, in UTF-8."""
        return self.text(translated).encode("utf-8", "surrogatepass")

    def add_text(self, source: str) -> None:
        """Add source text to the segment."""
        text = self._spelling.read(source)
        self._source.append(source)
        self._has_words = self._has_words or any(map(str.isalnum, text))
        if self._parts and isinstance(self._parts[-1], str):
            text = f"{self._parts.pop()}{text}"
        self._parts.append(text)

    def add_text_with_entities(self, source: str) -> None:
        """Add source text of XML to the segment. Unknown entities, and those of several characters, are shielded."""
        for index, text in enumerate(_OWN_ENTITY.split(source)):
            if index % 2 and not self._spelling.is_character(text[1:-1]):
                self.add_shielded(self.entities.get(text[1:-1], text), text)
            elif text:
                self.add_text(text)

    def declare_entities(self, text: str, tokens: Iterable[Token]) -> None:
        """Remember the entities that the document declares.

        Args:
            text: the document.
            tokens: its tokens.

        Raises:
            DataError: see `declared_entities`.
        """
        for token in tokens:
            if token.kind == "other" and not text.startswith(("<!--", "<![CDATA[", "<?"), token.start):
                self.entities.update(declared_entities(text[token.start:token.end]))

    def add_shielded(self, text: str, source: str) -> None:
        """Add words to the segment that are not translated."""
        self._source.append(source)
        self._parts.append(Shielded(text, (source,)))

    def add_left_out(self, source: str) -> None:
        """Add source to the segment that its translation does not have."""
        self._source.append(source)

    def add_single(self, source: Sequence[Piece]) -> None:
        """Add a single tag to the segment, which divides words."""
        self._add_mark("single", self._new_key(), source)

    def add_nothing(self, source: Sequence[Piece]) -> None:
        """Add source to the segment that does not divide words, such as a comment or an end tag without a start tag."""
        key = self._new_key()
        self._add_mark("open", key, source)
        self._add_mark("close", key, ())

    def open(self, source: Sequence[Piece], name: str = "") -> int:
        """Add the start tag of an element with this name, and return the key of the pair."""
        key = self._new_key()
        self._add_mark("open", key, source, name.lower() in _RAISED)
        return key

    def close(self, key: int, source: Sequence[Piece] = ()) -> None:
        """Add the end tag of a pair; `source` is empty if the source has no end tag."""
        self._add_mark("close", key, source)

    def open_element(self, source: Sequence[Piece], name: str) -> None:
        """Add the start tag of an element that remains open."""
        self._opened.append((name, self.open(source, name)))
        self._names[name] += 1

    def close_element(self, name: str, source: str) -> None:
        """Add an end tag, and close the elements inside; an end tag without a start tag closes nothing."""
        if not self._names[name]:
            self.add_nothing((source,))
            return
        while True:
            opened, key = self._opened.pop()
            self._names[opened] -= 1
            self.close(key, (source,) if opened == name else ())
            if opened == name:
                return

    def add_block(self, source: Sequence[Piece]) -> None:
        """Close all elements, end the segment, and add a tag that belongs to no segment."""
        while self._opened:
            self.close(self._opened.pop()[1])
        self._names.clear()
        self.add_between(source)

    def end_segment(self) -> None:
        """Add the current parts as a segment if they have words, or else as text that is not translated."""
        if self._has_words:
            self._pieces.append(_SegmentPosition(len(self._segments)))
            self._segments.append(_Segment(tuple(self._parts), tuple(self._source), self._spelling))
        else:
            self._pieces += self._source
        self._parts, self._source, self._has_words, self._spelling = [], [], False, Spelling(self.entities)

    def add_between(self, source: Iterable[Piece]) -> None:
        """End the segment, and add source that belongs to no segment."""
        self.end_segment()
        self._pieces += source

    def value(self, source: str, quote: str) -> Value:
        """Add the value of an attribute as a separate segment."""
        spelling = Spelling(self.entities)
        self._segments.append(_Segment((spelling.read(source),), (source,), spelling))
        return Value(len(self._segments) - 1, quote)

    def _add_mark(self, kind: str, key: int, source: Sequence[Piece], is_raised: bool = False) -> None:
        self._source += source
        self._parts.append(Mark(kind, key, tuple(source), is_raised))  # type: ignore[arg-type]

    def _new_key(self) -> int:
        self._keys += 1
        return self._keys

    def _written(self, pieces: Iterable[Piece | _SegmentPosition], translated: Sequence[Segment]) -> Iterable[str]:
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
            elif isinstance(piece, Value):
                yield self._value(piece, translated[piece.segment])
            else:
                yield from self._segment(piece.segment, translated)

    def _segment(self, number: int, translated: Sequence[Segment]) -> Iterable[str]:
        segment = self._segments[number]
        if translated[number] == segment.parts:     # keep the source, which may write a character in several ways
            yield from self._written(segment.source, translated)
            return
        for part in translated[number]:
            if isinstance(part, str):
                yield segment.spelling.write(part)
            else:
                yield from self._written(part.content, translated)

    def _value(self, value: Value, translated: Segment) -> str:
        segment = self._segments[value.segment]
        if translated == segment.parts:
            return "".join(piece for piece in segment.source if isinstance(piece, str))
        text = segment.spelling.write("".join(part for part in translated if isinstance(part, str)), value.quote or '"')
        return text if value.quote else f'"{text}"'


class _SegmentPosition(NamedTuple):
    """The position of a segment among the pieces."""

    segment: int
