"""The atoms of a text: what marks stand between. They are runs of letters and digits, and single signs.

Several atoms can make a word, which is what stands between white space: links are between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from towernmt.documents.segments import Shielded

SPACE = re.compile("[\\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""What `towernmt.dataflow.text.cleaning` takes for white space."""
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
                       "\U00020000-\U0003ffff]{2}")


class Atom(NamedTuple):
    """An atom of a text.

    Attributes:
        text: as it is written.
        is_word: letters or digits, or shielded words; else a sign.
        shield: the words that it stands for; None: it is text.
    """

    text: str
    is_word: bool
    shield: Shielded | None = None


def pieces_of(text: str) -> Iterator[tuple[str, str]]:
    """A text cut into white space, letters and signs.

    Returns:
        pairs of a kind, " ", "a" or "!", and a piece; a sign is a piece of its own.
    """
    place = 0
    for space in SPACE.finditer(text):
        yield from _signs_and_letters(text[place:space.start()])
        yield " ", space[0]
        place = space.end()
    yield from _signs_and_letters(text[place:])


def is_unspaced(text: str) -> bool:
    """Whether a text is in a script that has no spaces between words."""
    return _UNSPACED.search(text) is not None


def _signs_and_letters(text: str) -> Iterator[tuple[str, str]]:
    for is_sign, run in groupby(text, _is_sign):
        if is_sign:
            yield from (("!", sign) for sign in run)
        else:
            yield "a", "".join(run)


@lru_cache(4096)
def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
