"""Upper case, lower case and title case of a text, by the rules of Unicode and of its language.

Python's methods follow the rules that Unicode has for all languages: ß becomes SS, and a final sigma becomes ς. Some
languages have other rules (Unicode's SpecialCasing.txt, and CLDR): Turkish and Azerbaijani distinguish the dotted and
the dotless i, Greek capitals have no accents, and Dutch writes IJ at the beginning of a word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

import regex  # type: ignore[import-untyped]

_DOTTED = ("tr", "az")
_WORD = regex.compile(r"(?<![\p{L}\p{N}_]\p{M}*)\p{L}(?:[\p{L}\p{M}\p{N}]|['’](?=[\p{L}\p{N}_]))*")
_GREEK_ACCENTS = "\u0301\u0300\u0342\u0313\u0314\u0345"


def upper_case(text: str, language: str = "") -> str:
    """Return the text in capitals.

    Args:
        text: any text. Characters without case do not change.
        language: ISO 639-1 code, such as `tr`; "" for the rules that all languages share.
    """
    if language in _DOTTED:
        text = text.replace("i", "İ").replace("ı", "I")
    elif language == "el":
        parts = unicodedata.normalize("NFD", text)
        text = unicodedata.normalize("NFC", "".join(c for c in parts if c not in _GREEK_ACCENTS))
    return text.upper()


def lower_case(text: str, language: str = "") -> str:
    """Return the text in lower case; for the arguments, see `upper_case`."""
    if language in _DOTTED:
        text = text.replace("İ", "i").replace("I", "ı")
    return text.lower()


def title_case(text: str, language: str = "") -> str:
    """Return the text with a capital at the beginning of each word; the other letters do not change.

    For the arguments, see `upper_case`.
    """
    return _WORD.sub(lambda match: capitalized(match[0], language), text)


def capitalized(word: str, language: str = "") -> str:
    """Return a word with its first letter as a capital; its other letters do not change."""
    count = 2 if language == "nl" and word[:2].lower() == "ij" else 1
    first = word[:count]
    if count == 1 and language not in _DOTTED:
        return (first.title() if len(first.upper()) > 1 or first.title() != first.upper() else first.upper()) + word[1:]
    return upper_case(first, language) + word[count:]


def has_case(text: str) -> bool:
    """Return whether the text has letters with two cases."""
    return text.lower() != text.upper()


def is_upper_case(text: str) -> bool:
    """Return whether the text is in capitals: at least two letters with case, and all of them are capitals."""
    return text == text.upper() and sum(c.lower() != c for c in text) > 1


def words_by_form(words: Iterable[str], form: Callable[[str], str]) -> dict[str, list[str]]:
    """Return lists of words by their form in another case, in the order of the words."""
    found: dict[str, list[str]] = {}
    for word in words:
        found.setdefault(form(word), []).append(word)
    return found
