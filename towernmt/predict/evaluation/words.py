"""The words of a text, for lengths, frequencies and marked differences, whatever its language.

A word is a run of letters, digits and marks; each punctuation mark is one; and so is each character of a script that
writes no spaces between words.
"""

from __future__ import annotations

import regex  # type: ignore[import-untyped]

_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORD = regex.compile(rf"[{_NO_SPACES}]\p{{M}}*|(?:(?![{_NO_SPACES}])[\p{{L}}\p{{N}}\p{{M}}_])+|[^\s]")


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where each of `words` begins in the text, and where it ends (the next character's index)."""
    return [found.span() for found in _WORD.finditer(text)]
