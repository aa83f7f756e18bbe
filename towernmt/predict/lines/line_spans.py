r"""Spans of a line that its translation must have exactly as often: protected words, symbols and numbers.

- Words and symbols are those of `documents.shields`, and matches of the user's patterns. Each character counts.
- Numbers are those with three digits or more, with separators, or with a unit. A translation may write other separators
  (`1,000.5` and `1.000,5`), spell out the unit, or use the digits of another script. Times of the twelve-hour clock may
  change, so they are not spans.
- Small numbers, with one or two digits and without a unit, are not spans either. A translation that lacks one of them
  may have spelled it out or lost it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property

from towernmt.documents.segments import Part, Segment
from towernmt.documents.shields import Attached, PlainShielded, Protection

_GROUPED = r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?"
_PHONE = r"\+\d{1,3}(?:[ \u00a0/-]?(?:\(\d{1,6}\)|\d{2,12})){1,6}(?!\d)"
_DIGITS = rf"{_PHONE}|{_GROUPED}|\d+(?:[.,:/'’\u066b\u066c-]\d+)*"
_UNITS = ("% ‰ °C °F ° € $ £ ¥ ₹ EUR USD GBP CHF JPY km/h m/s km² m² cm² km cm mm µm nm m kg mg g ml cl l kB KB MB GB "
          "TB Mbit/s Hz kHz MHz GHz kWh kW MW W mA V px dpi ms x").split()
_UNIT = "|".join(map(re.escape, sorted(_UNITS, key=len, reverse=True))).replace("%", r"%(?!\()")    # not of %(name)s
_CURRENCY = r"[€$£¥₹][ \u00a0]?"
_NUMBER = re.compile(rf"(?P<before>{_CURRENCY})?(?<![\w.,])(?:[vV](?=\d+(?:\.\d+)+(?!\.?\w)))?(?P<digits>{_DIGITS})"
                     rf"(?P<unit>[ \u00a0\u202f]?(?:{_UNIT}))?(?![\w%])(?!\s?[ap]\.?m\b)", re.IGNORECASE)
_SMALL_NUMBER = re.compile(r"(?<![\w.,:/-])\d{1,2}(?![\w%]|[.,:/-]\d)")
_SHORT_RANGE = re.compile(r"\d{1,2}[/-]\d{1,2}")
_RUN_OF_DIGITS = re.compile(_DIGITS)
_GROUP = re.compile(r"\d+")
_SHORT_GROUP = re.compile(r"(?<!\d)\d{1,2}(?!\d)")
_AFTER_A_NUMBER = re.compile(r"[ \u00a0\u202f]?(?:[^\W\d_]|[%‰°€$£¥₹×])")
_BEFORE_A_NUMBER = re.compile(r"(?:[€$£¥₹]|\b[A-Z]{3})[ \u00a0\u202f]?$")
_HOURS = 24
_CLOCK = re.compile(r"(?<![\d.:])(\d{1,2})[:.][0-5]\d(?![\d.:])")
_SIMILAR = 0.5
"""Minimum similarity of the digits of two numbers, 0 to 1, at which one is a damaged copy of the other."""


def numbers_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each number that a translation must keep, with its unit."""
    for match in _NUMBER.finditer(text):
        digits = match["digits"]
        has_unit = bool(match["before"] or match["unit"] and match["unit"].lower() != "x")      # `3x` may be "thrice"
        if has_unit or sum(map(str.isdigit, digits)) > 2 or (
                not digits.isdigit() and not _SHORT_RANGE.fullmatch(digits)):
            yield match.span()


def number_value(text: str) -> str:
    """Return the digits of a number as those of ASCII, without separators of thousands and with a point for others."""
    groups = ["".join(str(unicodedata.digit(c)) for c in group) for group in _GROUP.findall(text)]
    return re.sub(r"(?<!\d)(\d{1,3}(?:\.\d{3})+)(?!\d)", lambda match: match[0].replace(".", ""), ".".join(groups))


def _numbers(text: str) -> Counter[str]:
    """Return how often the text has each number, by its value."""
    return Counter(number_value(match[0]) for match in _RUN_OF_DIGITS.finditer(text))


def _has_unit(text: str, start: int, end: int) -> bool:
    """Return whether a number in a text has a unit, which may be any word."""
    return bool(_AFTER_A_NUMBER.match(text, end) or _BEFORE_A_NUMBER.search(text[:start]))


def _values_with_units(text: str) -> set[str]:
    """Return the values of the numbers with units in a text."""
    return {number_value(match[0]) for match in _RUN_OF_DIGITS.finditer(text) if _has_unit(text, *match.span())}


class LineSpans:
    """The spans of a line.

    Args:
        text: the line.
        protection: the words and symbols to protect.
        numbers: whether numbers are spans, too.

    Attributes:
        segment: the line as text, shielded words and numbers, and symbols as marks.
    """

    def __init__(self, text: str, protection: Protection, numbers: bool = True) -> None:
        self._text, self._has_numbers = text, numbers
        self.segment: Segment = tuple(_with_spans(text, protection, numbers))
        numbers_of_line = [part.text for part in self.segment if isinstance(part, _Number)]
        self._numbers = Counter(map(number_value, numbers_of_line))
        self._with_units = set[str]().union(*map(_values_with_units, numbers_of_line))

    @cached_property
    def words(self) -> list[str]:
        """The different words and symbols, without numbers."""
        return list(dict.fromkeys(part.text for part in self.segment
                                  if isinstance(part, PlainShielded | Attached) and not isinstance(part, _Number)))

    @property
    def is_empty(self) -> bool:
        """Whether the line has no span and no small number."""
        return not self.words and not self._numbers and not self._small_numbers

    @cached_property
    def _small_numbers(self) -> Counter[int]:
        texts = [part for part in self.segment if isinstance(part, str)] if self._has_numbers else []
        return Counter(int(match[0]) for text in texts for match in _SMALL_NUMBER.finditer(text))

    def lost_small_numbers(self, translation: str) -> list[int]:
        """Return the different small numbers that a translation lacks.

        An hour may be that of the other clock (`14` and `2`), or the one before it (`halb 8` and `7:30`).
        """
        if not self._small_numbers:
            return []
        of_line, found = (Counter(map(int, _SHORT_GROUP.findall(text))) for text in (self._text, translation))
        hours = {(hour + 12) % _HOURS for hour in found if hour <= _HOURS and not of_line[hour]}
        hours |= {(int(match[1]) + later) % _HOURS for match in _CLOCK.finditer(translation) for later in (1, 13)}
        return [value for value, count in self._small_numbers.items()
                if found[value] < count and not (value <= _HOURS and value % _HOURS in hours)]

    def changed(self, translation: str) -> int:
        """Return the number of different spans that a translation has more or less often than the line.

        A number without its unit counts, too.
        """
        count = sum(translation.count(span) != self._text.count(span) for span in self.words)
        if self._numbers:
            of_line, found = _numbers(self._text), _numbers(translation)
            lost = self._with_units - _values_with_units(translation) if self._with_units else ()
            count += sum(found[value] != of_line[value] or value in lost for value in self._numbers)
        return count

    def with_numbers(self, translation: str) -> str:
        """Return a translation in which each number that the model has changed is replaced by that of the line.

        The numbers that are missing and those that the line does not have must be equally many and similar, in their
        order: `founded in 194` for `1910`. Otherwise the translation is returned unchanged.
        """
        of_line, found = _numbers(self._text), _numbers(translation)
        missing = [number for number in self._digits(self.lost_small_numbers(translation))
                   if found[number_value(number)] < of_line[number_value(number)]]
        foreign = [match for match in _RUN_OF_DIGITS.finditer(translation) if not of_line[number_value(match[0])]]
        if len(missing) != len(foreign) or not all(_are_similar(one, other[0]) for one, other in zip(
                missing, foreign, strict=True)):
            return translation
        for number, match in zip(reversed(missing), reversed(foreign), strict=True):
            translation = translation[:match.start()] + number + translation[match.end():]
        return translation

    def _digits(self, small: Sequence[int]) -> Iterator[str]:
        """Yield the digits of the numbers among the spans and of small numbers with these values, in their order."""
        for part in with_small_numbers(self.segment, small):
            if isinstance(part, _Number) and (match := _RUN_OF_DIGITS.search(part.text)):
                yield match[0]


def with_small_numbers(segment: Segment, values: Collection[int]) -> Segment:
    """Return a segment in which small numbers with these values are shielded, too."""
    parts: list[Part] = []
    for part in segment:
        if not isinstance(part, str):
            parts.append(part)
            continue
        done = 0
        for match in _SMALL_NUMBER.finditer(part):
            if int(match[0]) in values:
                parts += [part[done:match.start()], _Number(match[0], None)]
                done = match.end()
        parts.append(part[done:])
    return tuple(part for part in parts if part != "")


def _are_similar(one: str, other: str) -> bool:
    """Return whether two numbers have equally many groups of digits, and most of their digits in common."""
    first, second = _GROUP.findall(one), _GROUP.findall(other)
    return len(first) == len(second) and SequenceMatcher(
        None, "".join(first), "".join(second), autojunk=False).ratio() >= _SIMILAR


class _Number(PlainShielded):
    """A number, with its unit."""

    __slots__ = ()


def _with_spans(text: str, protection: Protection, numbers: bool) -> Iterator[Part]:
    """Yield a text, and its spans. A sign that belongs to the unit of a number, as in `cm\u00b2`, is not a symbol."""
    spans = list(protection.spans(text))
    words = [(start, end) for start, end, is_symbol in spans if not is_symbol]
    symbols = [(start, end) for start, end, is_symbol in spans if is_symbol]
    found = _apart_from(words, numbers_in(text) if numbers else ())
    parts: list[tuple[int, int, Part]] = [
        *((start, end, PlainShielded(text[start:end], None)) for start, end in words),
        *((start, end, _Number(text[start:end], None)) for start, end in found),
        *((start, end, Attached("single", -1, (text[start:end],))) for start, end in _apart_from(found, symbols))]
    done = 0
    for start, end, part in sorted(parts, key=lambda one: one[0]):
        if start > done:
            yield text[done:start]
        yield part
        done = end
    if done < len(text):
        yield text[done:]


def _apart_from(taken: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans, as start and end, that overlap none of those that are taken, which are in order."""
    ends = [end for _, end in taken]
    found = []
    for start, end in spans:
        index = bisect_right(ends, start)
        if index == len(taken) or taken[index][0] >= end:
            found.append((start, end))
    return found
