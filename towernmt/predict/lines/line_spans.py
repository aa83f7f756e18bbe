"""Spans of a line that its translation must have exactly as often: protected words, symbols, marks and numbers.

- Words and symbols are those of `documents.shields`, and matches of the user's patterns. Each character counts.
- Marks are those of `mark_spans`. The model does not see them in a second translation.
- Numbers are those of `number_spans`. A translation may write other separators (`1,000.5` and `1.000,5`), spell out the
  unit, or use the digits of another script.
- Small numbers and units are not spans. A translation that lacks one of them may have spelled it out or lost it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import regex  # type: ignore[import-untyped]

from towernmt.documents.emoticons import emoticons_in
from towernmt.documents.segments import Part, Segment
from towernmt.documents.shields import Attached, PlainShielded, Protection
from towernmt.predict.lines.mark_spans import FILL_IN, LineMarks, item_number
from towernmt.predict.lines.number_spans import (
    are_similar,
    equations_in,
    lost_values,
    names_with_digits_in,
    negative_values,
    number_counts,
    number_value,
    numbers_in,
    runs_of_digits,
    small_numbers_in,
    units_of_values,
    values_with_units,
)

_FILL_IN = regex.compile(r"<[^\W\d_][\w -]{0,30}>|\{[^\W\d_][\w -]{0,30}\}|(?<![^\s(])_{2,40}(?!\w)|\[\d{1,3}\]"
                         rf"|{FILL_IN}")
"""A placeholder such as `<Name>`, unless it is a tag, a blank such as `___`, and the number of a note."""
_BETWEEN_NUMBERS = re.compile(r",? (?:[-–] )?")


class LineSpans:
    """The spans of a line.

    Args:
        text: the line.
        protection: the words and symbols to protect.
        marks_and_numbers: whether marks and numbers are spans, too.
        language: ISO 639-1 code of the line's language, which decides whether `2a` is a name; "" if it is unknown.

    Attributes:
        segment: the line as text, shielded words and numbers, and symbols and marks as marks.
    """

    def __init__(self, text: str, protection: Protection, marks_and_numbers: bool = True, language: str = "") -> None:
        self._text, self._has_numbers = text, marks_and_numbers
        words = [(start, end) for start, end, _ in replace(protection, is_on=False).spans(text)]
        self._marks = LineMarks(text if marks_and_numbers else "", [*words, *emoticons_in(text)])
        self.segment: Segment = tuple(_with_spans(text, protection, self._marks, marks_and_numbers, language))
        numbers_of_line = [part.text for part in self.segment if isinstance(part, _Number)]
        self._numbers = Counter(chain.from_iterable(number_counts(number).elements() for number in numbers_of_line))
        self._values_with_units = set[str]().union(*map(values_with_units, numbers_of_line))
        self._units = set[tuple[str, str]]().union(*map(units_of_values, numbers_of_line))
        self._negative_values = set[str]().union(*map(negative_values, numbers_of_line))

    @cached_property
    def words(self) -> list[str]:
        """The different words and symbols, without numbers and marks."""
        marks = {id(span.mark) for span in self._marks.spans}
        return list(dict.fromkeys(part.text for part in self.segment
                                  if isinstance(part, PlainShielded | Attached) and not isinstance(part, _Number)
                                  and id(part) not in marks))

    @property
    def is_empty(self) -> bool:
        """Whether the line has no span and no small number."""
        return not (self.words or self._numbers or self._small_numbers or self._marks.spans)

    @cached_property
    def _small_numbers(self) -> Counter[int]:
        texts = [part for part in self.segment if isinstance(part, str)] if self._has_numbers else []
        return Counter(value for text in texts for _, _, values in small_numbers_in(text) for value in values)

    def lost_small_numbers(self, translation: str) -> list[int]:
        """Return the different small numbers that a translation lacks; see `lost_values`."""
        return lost_values(self._text, self._small_numbers, translation) if self._small_numbers else []

    def num_changed_units(self, translation: str) -> int:
        """Return how many numbers a translation has without their units; it may have spelled out or changed these."""
        return len(self._units - units_of_values(translation)) if self._units else 0

    def lost_item_number(self, translation: str) -> list[int]:
        """Return the number of the list item at the beginning of the line if it damages the translation.

        The translation does not begin with it, or has no words after it.
        """
        item = item_number(self._text) if self._has_numbers else None
        if item is None or translation.startswith(item[0].strip()) and any(map(str.isalpha, translation)):
            return []
        return [int(item[1])]

    def changed(self, translation: str) -> int:
        """Return the number of different spans that a translation has more or less often than the line.

        A number without its unit or its minus sign counts, too.
        """
        count = sum(translation.count(span) != self._text.count(span) for span in self.words)
        if self._numbers:
            line_counts, translation_counts = number_counts(self._text), number_counts(translation)
            changed_values = set[str]()
            if self._values_with_units:
                changed_values = self._values_with_units - values_with_units(translation)
            if self._negative_values:
                changed_values |= self._negative_values - negative_values(translation)
            count += sum(translation_counts[value] != line_counts[value] or value in changed_values
                         for value in self._numbers)
        return count + self._marks.lost(translation)

    def with_numbers(self, translation: str, must_be_similar: bool = True) -> str:
        """Return a translation in which each number that the model has changed is replaced by that of the line.

        The numbers that are missing and those that the line does not have must be equally many, in their order.
        Otherwise the translation is returned unchanged.

        Args:
            translation: the translation.
            must_be_similar: whether they must have most digits in common, as in `founded in 194` for `1910`.
        """
        line_counts, translation_counts = number_counts(self._text), number_counts(translation)
        missing = [number for number in self._digits(self.lost_small_numbers(translation))
                   if translation_counts[number_value(number)] < line_counts[number_value(number)]]
        foreign = [match for match in runs_of_digits(translation) if not line_counts[number_value(match[0])]]
        if len(missing) != len(foreign) or must_be_similar and not all(
                are_similar(number, match[0]) for number, match in zip(missing, foreign, strict=True)):
            return translation
        for number, match in zip(reversed(missing), reversed(foreign), strict=True):
            translation = translation[:match.start()] + number + translation[match.end():]
        return translation

    def _digits(self, small: Sequence[int]) -> Iterator[str]:
        """Yield the digits of the numbers among the spans and of small numbers with these values, in their order."""
        for part in with_small_numbers(self.segment, small):
            if isinstance(part, _Number) and (match := next(runs_of_digits(part.text), None)):
                yield match[0]


def with_small_numbers(segment: Segment, values: Collection[int]) -> Segment:
    """Return a segment in which small numbers with these values are shielded, too.

    The number of a list item at the beginning becomes a mark.
    """
    parts: list[Part] = []
    for index, part in enumerate(segment):
        if not isinstance(part, str):
            parts.append(part)
            continue
        position = 0
        if index == 0 and (item := item_number(part)) and int(item[1]) in values:
            parts.append(Attached("single", -1, (item[0],)))
            position = item.end()
        for start, end, small_values in small_numbers_in(part):
            if start >= position and not set(small_values).isdisjoint(values):
                parts += [part[position:start], _Number(part[start:end], None)]
                position = end
        parts.append(part[position:])
    return tuple(part for part in parts if part != "")


class _Number(PlainShielded):
    """A number, with its sign and its unit."""

    __slots__ = ()


def _with_spans(text: str, protection: Protection, marks: LineMarks, has_numbers: bool, language: str
                ) -> Iterator[Part]:
    """Yield a text, and its spans. A sign that belongs to the unit of a number, as in `cm\u00b2`, is not a symbol."""
    unmarked_text = marks.without_marks() if marks.spans else text
    spans = list(protection.spans(unmarked_text))
    # A span may not contain the spaces in place of a mark, such as a match of `[0-9]+ *mg` in `5 **mg**`.
    mark_spans = [(start, end) for start, end, _ in marks.spans]
    word_spans = _apart_from(mark_spans, [(start, end) for start, end, is_symbol in spans if not is_symbol])
    symbol_spans = _apart_from(mark_spans, [(start, end) for start, end, is_symbol in spans if is_symbol])
    number_spans: list[tuple[int, int]] = []

    def free(new_spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        return _apart_from(sorted([*word_spans, *number_spans, *mark_spans]), new_spans)

    if has_numbers:
        word_spans = sorted([*word_spans, *free(equations_in(unmarked_text))])
        number_spans = _joined(free(numbers_in(unmarked_text)), text)
        word_spans = sorted([*word_spans, *free(match.span() for match in _FILL_IN.finditer(unmarked_text))])
        names = names_with_digits_in(unmarked_text, language)
        word_spans = sorted([*word_spans, *free(names)])        # `[A1]` has one, too
        word_spans, number_spans = ([_with_brackets(span, unmarked_text) for span in spans_of_kind]
                                    for spans_of_kind in (word_spans, number_spans))
    parts: list[tuple[int, int, Part]] = [
        *marks.spans,
        *((start, end, PlainShielded(text[start:end], None)) for start, end in word_spans),
        *((start, end, _Number(text[start:end], None)) for start, end in number_spans),
        *((start, end, Attached("single", -1, (text[start:end],)))
          for start, end in _apart_from(sorted([*word_spans, *number_spans]), symbol_spans))]
    position = 0
    for start, end, part in sorted(parts, key=lambda positioned_part: positioned_part[0]):
        if start > position:
            yield text[position:start]
        yield part
        position = end
    if position < len(text):
        yield text[position:]


def _joined(number_spans: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Return the numbers of a text, with one for those between which only a comma or a dash is: a date and a time."""
    joined_spans: list[tuple[int, int]] = []
    for start, end in number_spans:
        if joined_spans and _BETWEEN_NUMBERS.fullmatch(text[joined_spans[-1][1]:start]):
            joined_spans[-1] = joined_spans[-1][0], end
        else:
            joined_spans.append((start, end))
    return joined_spans


def _with_brackets(span: tuple[int, int], text: str) -> tuple[int, int]:
    """Return a span with the brackets that surround nothing else."""
    start, end = span
    around = text[max(start - 1, 0):start] + text[end:end + 1]
    return (start - 1, end + 1) if around in ("()", "[]", "<>") else span


def _apart_from(occupied_spans: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans, as start and end, that overlap none of those that are taken, which are in order."""
    ends = [end for _, end in occupied_spans]
    free_spans = []
    for start, end in spans:
        index = bisect_right(ends, start)
        if index == len(occupied_spans) or occupied_spans[index][0] >= end:
            free_spans.append((start, end))
    return free_spans
