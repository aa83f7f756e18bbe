"""A text with tags as a document: segments, and all between them as it is in the source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from towernmt.documents.formats.markup.entities import Spelling
from towernmt.documents.segments import Mark, Part, Segment, Shielded


class Value(NamedTuple):
    """The value of an attribute, which is translated.

    Attributes:
        segment: its number among the segments.
        quote: around it, in the source; "" for none.
    """

    segment: int
    quote: str


Piece = str | Value
"""Of what is written: as in the source, or a translated value."""


class _Segment(NamedTuple):
    """A segment.

    Attributes:
        parts: as they are to be translated.
        source: as the source writes it.
        spelling: of its text.
    """

    parts: Segment
    source: Sequence[Piece]
    spelling: Spelling


class MarkupDocument:
    """A text with tags. Formats fill it, and then it is translated.

    Attributes:
        segments: what is translated.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._pieces: list[Piece | _Place] = []
        self._parts: list[Part] = []
        self._source: list[Piece] = []
        self._spelling = Spelling()
        self._has_words = False
        self._keys = 0

    @property
    def segments(self) -> list[Segment]:
        """What is translated."""
        return [segment.parts for segment in self._segments]

    def text(self, translated: Sequence[Segment]) -> str:
        """The text with other segments."""
        return "".join(self._written(self._pieces, translated))

    def written(self, translated: Sequence[Segment]) -> bytes:
        """The text as UTF-8."""
        return self.text(translated).encode("utf-8", "surrogatepass")

    # What formats call

    def add_text(self, source: str, as_is: bool = False) -> None:
        """Text of the segment, as the source writes it.

        Args:
            as_is: it has no entities.
        """
        text = source if as_is else self._spelling.read(source)
        self._source.append(source)
        self._has_words = self._has_words or any(map(str.isalnum, text))
        if self._parts and isinstance(self._parts[-1], str):
            text = f"{self._parts.pop()}{text}"
        self._parts.append(text)

    def add_shielded(self, text: str, source: str) -> None:
        """Words of the segment that are not translated."""
        self._source.append(source)
        self._parts.append(Shielded(text, (source,)))

    def add_single(self, source: Sequence[Piece]) -> None:
        """A tag of the segment that stands alone, and parts words."""
        self._add_mark("single", self._new_key(), source)

    def add_nothing(self, source: Sequence[Piece]) -> None:
        """What is inside the segment, and parts no words: a comment, a tag that nothing opened."""
        key = self._new_key()
        self._add_mark("open", key, source)
        self._add_mark("close", key, ())

    def open(self, source: Sequence[Piece]) -> int:
        """A tag that opens a pair; its key."""
        key = self._new_key()
        self._add_mark("open", key, source)
        return key

    def close(self, key: int, source: Sequence[Piece] = ()) -> None:
        """A tag that closes a pair; without a source, where the source has none."""
        self._add_mark("close", key, source)

    def end_segment(self) -> None:
        """What comes now is another segment."""
        if self._has_words:
            self._pieces.append(_Place(len(self._segments)))
            self._segments.append(_Segment(tuple(self._parts), tuple(self._source), self._spelling))
        else:
            self._pieces += self._source
        self._parts, self._source, self._has_words, self._spelling = [], [], False, Spelling()

    def add_between(self, source: Iterable[Piece]) -> None:
        """What is between segments; ends the segment."""
        self.end_segment()
        self._pieces += source

    def value(self, source: str, quote: str) -> Value:
        """A value that is translated, a segment of its own."""
        spelling = Spelling()
        self._segments.append(_Segment((spelling.read(source),), (source,), spelling))
        return Value(len(self._segments) - 1, quote)

    def _add_mark(self, kind: str, key: int, source: Sequence[Piece]) -> None:
        self._source += source
        self._parts.append(Mark(kind, key, tuple(source)))  # type: ignore[arg-type]

    def _new_key(self) -> int:
        self._keys += 1
        return self._keys

    def _written(self, pieces: Iterable[Piece | _Place], translated: Sequence[Segment]) -> Iterable[str]:
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
            elif isinstance(piece, Value):
                yield self._value(piece, translated[piece.segment])
            else:
                yield from self._segment(piece.segment, translated)

    def _segment(self, number: int, translated: Sequence[Segment]) -> Iterable[str]:
        segment = self._segments[number]
        if translated[number] == segment.parts:     # also where the source spells a character in two ways
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


class _Place(NamedTuple):
    """Where a segment stands."""

    segment: int
