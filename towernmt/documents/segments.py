"""Segments, the units that formats pass to the translation: text with marks and protected words; and their atoms.

Marks stand between atoms. An atom is a run of letters and digits, or a single sign. A word is the atoms between two
white spaces. Word alignments are between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

from towernmt.dataflow.text.word_segmentation import characters


class Mark(NamedTuple):
    """A tag, or something similar, inside a segment.

    Attributes:
        kind: "open" and "close" for the marks of a pair; "single" for a line break, an image or a reference.
        key: number that only the two marks of a pair share within a segment.
        content: the data that the format writes for the mark; the translation ignores it.
        is_raised: whether the pair raises or lowers its text, as `<sup>` and `<sub>` do.
    """

    kind: Literal["open", "close", "single"]
    key: int
    content: Any
    is_raised: bool = False


class Shielded(NamedTuple):
    """Words that are not translated: code, an address, a placeholder, text that the document excludes.

    Attributes:
        text: the words as readers see them.
        content: the data that the format writes for the words; see `Mark`.
    """

    text: str
    content: Any


class Tag(NamedTuple):
    """A mark with its role in a segment.

    Attributes:
        mark: the mark.
        role: kind of the mark; "lone" for an opening or closing mark without a partner, or of a pair that crosses
            another pair.
    """

    mark: Mark
    role: Literal["open", "close", "single", "lone"]


Part = str | Mark | Shielded
Segment = tuple[Part, ...]
"""The parts of a text that is translated together: a paragraph, a heading, a cell, a subtitle."""


class Document(Protocol):
    """A text or file that was divided into segments."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments to translate, in order."""
        ...

    def written(self, translated: Sequence[Segment]) -> bytes:
        """Return the document with the translation of each segment; everything else is unchanged."""
        ...


def plain_text(segment: Segment) -> str:
    """Return the text of a segment without its marks."""
    return "".join(part if isinstance(part, str) else part.text for part in segment if not isinstance(part, Mark))


def spaced_text(segment: Segment) -> str:
    """Return the text of a segment without its marks, with a space for a line break or an image before a word."""
    text, is_after_single = "", False
    for part in segment:
        if isinstance(part, Mark):
            is_after_single |= part.kind == "single"
        elif words := part if isinstance(part, str) else part.text:
            is_joined = is_after_single and words[0].isalnum() and text and not text[-1].isspace()
            text += f" {words}" if is_joined else words
            is_after_single = False
    return text


SPACE = re.compile("[\\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""White space as `towernmt.dataflow.text.text_lines` defines it."""
UNSPACED = ("\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
            "\U00020000-\U0003ffff")
"""Characters of scripts without spaces between words, for a class of a regular expression."""


class Atom(NamedTuple):
    """A run of letters and digits, a sign, or shielded words.

    Attributes:
        text: the characters.
        is_word: whether the atom is not a sign.
        shield: the shielded words; None for ordinary text.
    """

    text: str
    is_word: bool
    shield: Shielded | None = None


def runs_by_kind(text: str) -> Iterator[tuple[str, str]]:
    """Divide a text into white space (" "), runs of letters and digits ("a") and single signs ("!").

    Yields:
        Kind and text of each.
    """
    index = 0
    for space in SPACE.finditer(text):
        yield from _signs_and_letters(text[index:space.start()])
        yield " ", space[0]
        index = space.end()
    yield from _signs_and_letters(text[index:])


def _signs_and_letters(text: str) -> Iterator[tuple[str, str]]:
    for is_sign, run in groupby(characters(text), _is_sign):
        if is_sign:
            yield from (("!", sign) for sign in run)
        else:
            yield "a", "".join(run)


@lru_cache(4096)
def _is_sign(character: str) -> bool:
    """Return whether a character, which may have combining marks, is punctuation or a symbol."""
    return unicodedata.category(character[0])[0] in "PS"
