"""A text of which some places are translated, while all others stay as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from towernmt.documents.formats.text_file import Encode
from towernmt.documents.segments import Segment

_LETTER = re.compile(r"[^\W\d_]")


class Place(NamedTuple):
    """A place of a text.

    Attributes:
        segments: that stand there.
        write: the text of the place with these segments translated.
    """

    segments: Sequence[Segment]
    write: Callable[[Sequence[Segment]], str]


@dataclass
class Pieces:
    """A `Document` made of places and of text that stays.

    Attributes:
        pieces: in their order.
        encode: makes the whole bytes.
    """

    pieces: list[str | Place] = field(default_factory=list)
    encode: Encode = str.encode

    @property
    def segments(self) -> list[Segment]:
        """What is translated."""
        return [segment for piece in self.pieces if isinstance(piece, Place) for segment in piece.segments]

    def text(self, translated: Sequence[Segment]) -> str:
        """The text with other segments."""
        left = iter(translated)
        return "".join(piece if isinstance(piece, str) else piece.write([next(left) for _ in piece.segments])
                       for piece in self.pieces)

    def written(self, translated: Sequence[Segment]) -> bytes:
        """The document with other segments."""
        return self.encode(self.text(translated))


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a letter."""
    return _LETTER.search(text) is not None
