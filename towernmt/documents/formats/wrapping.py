"""Lines that were wrapped are made one text to be translated, and the translation is wrapped as its source was."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

NARROWEST, WIDEST = 40, 100
"""Widths at which people and programs wrap text."""
_BEGINNING = 40
"""So many characters of a line are looked at to see whether it may begin with them."""
_SPACE = re.compile(" +")
_FIRST_WORD = re.compile(r"\S+")


class Joined(NamedTuple):
    """Lines as one text.

    Attributes:
        text: with spaces in place of their ends; scripts without spaces get none.
        ends: where in the text each line but the last one ended.
    """

    text: str
    ends: Sequence[int]


def joined(lines: Sequence[str]) -> Joined:
    """Lines as one text."""
    parts, ends, length = [lines[0]], [], len(lines[0])
    for line, after in pairwise(lines):
        ends.append(length)
        between = "" if line and after and _is_wide(line[-1]) and _is_wide(after[0]) else " "
        parts += [between, after]
        length += len(between) + len(after)
    return Joined("".join(parts), ends)


def fills(line: str, after: str, width: int) -> bool:
    """Whether a line was wrapped at a width before the next line: the next line's first word has no room in it."""
    word = _FIRST_WORD.match(after)
    return word is not None and len(line) + 1 + len(word[0]) > width >= len(line)


def filled(text: str, width: int, may_begin: Callable[[str], bool] = bool) -> list[str]:
    """A text in lines, each with as many words as it has room for.

    Args:
        width: in characters; a longer word has a line of its own.
        may_begin: whether a line may begin with this.
    """
    lines: list[str] = []
    begin = 0
    spaces = [(found.start(), found.end()) for found in _SPACE.finditer(text)
              if may_begin(text[found.end():found.end() + _BEGINNING])]
    for here, following in pairwise([*spaces, (len(text), len(text))]):
        if following[0] - begin > width:
            lines.append(text[begin:here[0]])
            begin = here[1]
    return [*lines, text[begin:]]


def divided(text: str, source: Joined, may_begin: Callable[[str], bool] = bool) -> list[str]:
    """A text in as many lines as its source, each with about the same share of it.

    Args:
        may_begin: whether a line may begin with this.
    Returns:
        As many lines; the last ones are empty where there are too few words.
    """
    places = [place for place in _places(text) if may_begin(text[place[1]:place[1] + _BEGINNING])]
    lines: list[str] = []
    begin = first = 0
    for number, wanted in enumerate(source.ends):
        last = len(places) - (len(source.ends) - number)     # a place is left for each line that follows
        if first >= len(places):
            break
        place = wanted * len(text) / max(len(source.text), 1)
        found = bisect.bisect_left(places, (place, 0), first)
        if found == len(places) or (found > first and place - places[found - 1][0] <= places[found][0] - place):
            found -= 1
        found = max(min(found, last), first)
        end, start = places[found]
        lines.append(text[begin:end])
        begin, first = start, found + 1
    return [*lines, text[begin:], *[""] * (len(source.ends) - len(lines))]


def _places(text: str) -> list[tuple[int, int]]:
    """Where a line may end, and where the next one then begins."""
    found = [(space.start(), space.end()) for space in _SPACE.finditer(text) if 0 < space.start() and
             space.end() < len(text)]
    found += [(place, place) for place in range(1, len(text)) if _is_wide(text[place - 1]) and _is_wide(text[place])
              and not unicodedata.category(text[place]).startswith("P")]
    return sorted(found)


def _is_wide(character: str) -> bool:
    """Whether it belongs to a script without spaces: Chinese, Japanese."""
    return unicodedata.east_asian_width(character) in "WF" and not "\uac00" <= character <= "\ud7a3"
