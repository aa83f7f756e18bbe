"""Plain text as a document: each line is a segment."""

from __future__ import annotations

import re
from collections.abc import Sequence

from towernmt.documents.segments import Segment, plain_text

_LINES = re.compile(r"(\r?\n)")


class Lines:
    """A text of lines; their ends, and lines of white space, stay.

    Attributes:
        segments: the lines.
    """

    def __init__(self, text: str) -> None:
        self._pieces = _LINES.split(text)
        self._places = [place for place, piece in enumerate(self._pieces) if piece.strip()]
        self.segments: list[Segment] = [(self._pieces[place],) for place in self._places]

    def text(self, translated: Sequence[Segment]) -> str:
        """The text with other lines."""
        pieces = list(self._pieces)
        for place, segment in zip(self._places, translated, strict=True):
            pieces[place] = plain_text(segment)
        return "".join(pieces)

    def written(self, translated: Sequence[Segment]) -> bytes:
        """The text as UTF-8."""
        return self.text(translated).encode("utf-8", "surrogatepass")
