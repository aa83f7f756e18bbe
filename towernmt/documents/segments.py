"""What formats give to be translated: segments, which are text with marks in it and words that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol


class Mark(NamedTuple):
    """A tag, or what is like one, inside a segment.

    Attributes:
        kind: "open" and "close" are a pair; "single" stands alone: a line break, an image, a reference to a footnote.
        key: within its segment; an opening mark and its closing one share it, and nothing else has it.
        content: what its format writes there. The translation does not look at it.
    """

    kind: Literal["open", "close", "single"]
    key: int
    content: Any


class Shielded(NamedTuple):
    """Words that stay as they are: code, what is marked as not to be translated, a placeholder, an address.

    Attributes:
        text: as it stands in the text.
        content: what its format writes there, as of `Mark`.
    """

    text: str
    content: Any


Part = str | Mark | Shielded
Segment = tuple[Part, ...]
"""What is translated together: a paragraph, a heading, a cell, a subtitle. Plain text is one string."""


class Document(Protocol):
    """A text or file, taken apart."""

    @property
    def segments(self) -> Sequence[Segment]:
        """What of it is translated, in its order."""
        ...

    def written(self, translated: Sequence[Segment]) -> bytes:
        """The document with other segments: as many, in the same order. What is no segment is as it was."""
        ...


def plain_text(segment: Segment) -> str:
    """The text of a segment without its marks."""
    return "".join(part if isinstance(part, str) else part.text for part in segment if not isinstance(part, Mark))
