"""Digits and punctuation that a sentence and its translation should share."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache

import regex  # type: ignore[import-untyped]

_DIGITS = regex.compile(r"\p{Nd}")
_PUNCTUATION = regex.compile(r"\p{P}")
_CLOSING = regex.compile(r"[\p{Pe}\p{Pf}\p{Pi}\"'\s]+$")  # quotes and brackets after the last mark
_QUESTION = "?？؟՞⁇⁈⸮"
_GREEK = regex.compile(r"\p{Script=Greek}")
_MORE = 3  # marks that one side may have beyond 1.5 times the other's


def digits_agree(source: str, target: str) -> bool:
    """Whether both have the same digits, each as often, of any script, in any order.

    Zeros and separators do not count: "5:00" agrees with "5 Uhr", and "1,000" with "1.000".
    """
    return _digits(source) == _digits(target)


def punctuation_agrees(source: str, target: str) -> bool:
    """Whether both or neither is a question, and neither has far more punctuation marks.

    Far more means: more than 1.5 times the other's, plus three.
    """
    if _is_question(source) != _is_question(target):
        return False
    few, many = sorted(len(_PUNCTUATION.findall(text)) for text in (source, target))
    return many <= 1.5 * few + _MORE


def _digits(text: str) -> Counter[int]:
    counts = Counter(map(_value, _DIGITS.findall(text)))
    del counts[0]
    return counts


@cache
def _value(digit: str) -> int:
    return unicodedata.digit(digit)


def _is_question(text: str) -> bool:
    last = _CLOSING.sub("", text)[-1:]
    return bool(last) and (last in _QUESTION or last == ";" and _GREEK.search(text) is not None)
