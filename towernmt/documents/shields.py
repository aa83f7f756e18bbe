"""Words that a translation must not change: found in plain text, and what stands for them before a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count, islice

from towernmt.documents.segments import Shielded


class Found(Shielded):
    """Words that stay as they are, found in plain text: they come back as plain text."""

    __slots__ = ()


_PLACES = re.compile("|".join((
    r"(?:https?|ftp)://[^\s<>\"]+", r"\bwww\.[^\s<>\"]+",                       # addresses of the web
    r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",             # of mail
    r"\{\{[^{}\n]{1,100}\}\}", r"[$%#]\{[^{}\n]{1,100}\}", r"\{[\w.:,!\[\]-]{0,60}\}",          # {name}, {0}, ${NAME}
    r"%\(\w{1,60}\)[-#0+]*\d{0,4}(?:\.\d{1,4})?[a-zA-Z]",                       # %(n)d
    r"(?<![\w%])%(?:\d{1,2}\$)?[-#0+]*\d{0,4}(?:\.\d{1,4})?(?:hh|h|ll|l|L|z|j|t)?[diouxXeEfFgGcrsap@](?!\w)", r"%%",
    r"(?<![\w$])\$[A-Za-z_]\w{1,60}",                                           # $NAME
    r"</?\d{1,3} ?/?>")))                                                       # <0/>
_SENTENCE_SIGNS = ".,;:!?'*\u201d\u2019\u201c\u00bb\u2026"
_STAND_INS = re.compile(r"(?<![^\W\d_])[xX]\d+")
_LIKE_STAND_INS = re.compile(r"[xX](\d+)")
_BRACKETS = {")": "(", "]": "["}


def with_shields(text: str) -> Iterator[str | Found]:
    """Plain text, and the addresses and placeholders in it."""
    place = 0
    for match in _PLACES.finditer(text):
        found = _without_sentence_signs(match[0]) if "://" in match[0] or match[0].startswith("www.") else match[0]
        if match.start() > place:
            yield text[place:match.start()]
        yield Found(found, None)
        place = match.start() + len(found)
    if place < len(text):
        yield text[place:]


def _without_sentence_signs(address: str) -> str:
    """An address without what ends the sentence around it: signs, and a bracket that it does not open."""
    opened = {close: address.find(open) for close, open in _BRACKETS.items()}
    end = len(address)
    while end and (address[end - 1] in _SENTENCE_SIGNS
                   or address[end - 1] in opened and not 0 <= opened[address[end - 1]] < end):
        end -= 1
    return address[:end]


def stand_ins(number: int, text: str) -> list[str]:
    """Words that models copy, and that are not in a text: they stand for so many shielded ones.

    They are a capital letter with a digit, as names of variables and vitamins are, which vocabularies can write.
    """
    used = set(_LIKE_STAND_INS.findall(text))
    return list(islice((f"X{place}" for place in count(1) if str(place) not in used), number))


def find_stand_ins(names: Mapping[str, int], text: str) -> list[tuple[int, int, int]]:
    """Where stand-ins are in a translation: the number of each, and where it begins and ends.

    One that comes twice is found twice.

    Args:
        names: the stand-ins and their numbers.
    """
    found = ((names.get(match[0].upper()), match) for match in (_STAND_INS.finditer(text) if names else ()))
    return [(number, match.start(), match.end()) for number, match in found if number is not None]
