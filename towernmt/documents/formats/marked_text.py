"""Text with inline marks as a string, in which each mark is one character, so that it can be cut and wrapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from towernmt.documents.segments import Mark, Part, Segment, Shielded

_FIRST, _LAST = "\U00100000", "\U0010fffd"
"""Characters that stand for marks: of a plane that is for private use."""


class MarkedText:
    """What the characters of a text stand for."""

    def __init__(self) -> None:
        self._things: dict[str, Mark | Shielded] = {}

    def add(self, thing: Mark | Shielded) -> str:
        """The character for a mark or for words that stay."""
        character = chr(ord(_FIRST) + len(self._things))
        if character > _LAST:
            return thing.text if isinstance(thing, Shielded) else ""
        self._things[character] = thing
        return character

    def get(self, character: str) -> Mark | Shielded | None:
        """What a character stands for; None: for itself."""
        return self._things.get(character)

    def segment(self, text: str) -> Segment:
        """The parts of a text."""
        parts: list[Part] = []
        begin = 0
        for place, character in enumerate(text):
            if (thing := self._things.get(character)) is not None:
                parts += [part for part in (text[begin:place], thing) if part != ""]
                begin = place + 1
        return tuple(part for part in (*parts, text[begin:]) if part != "")

    def text(self, segment: Segment) -> str:
        """A segment as one string."""
        return "".join(part if isinstance(part, str) else self.add(part) for part in segment)

    def plain(self, text: str) -> str:
        """A text without its marks."""
        return "".join(character for character in text if character not in self._things)

    def contents(self, text: str) -> list[Any]:
        """A text as strings and the contents of its marks."""
        return [part if isinstance(part, str) else part.content for part in self.segment(text)]


def paired(tags: Sequence[tuple[str, Any] | None]) -> list[tuple[str, int]]:
    """The kinds and keys of tags in their order: an opening one with the closing one that fits it are a pair.

    Args:
        tags: ("open" or "close", what its partner must be equal to); None: a tag that stands alone.
    """
    made: list[tuple[str, int]] = [("single", number) for number in range(len(tags))]
    opened: list[int] = []
    there: Counter[Any] = Counter()
    for number, tag in enumerate(tags):
        if tag is None:
            continue
        kind, name = tag
        if kind == "open":
            opened.append(number)
            there[name] += 1
            continue
        while there[name]:
            other = opened.pop()
            opened_name = (tags[other] or ("", None))[1]
            there[opened_name] -= 1
            if opened_name == name:
                made[other], made[number] = ("open", other), ("close", other)
                break
    return made
