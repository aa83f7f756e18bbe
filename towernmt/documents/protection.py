"""Protect words and symbols of a segment from the translation.

- Words become one `Shielded`, which the model sees as a placeholder. An address may extend over several elements, such
  as `https://x.de/<wbr>ab`; its marks are then inside the `Shielded`.
- Symbols, and raised signs such as the number of a footnote, become a mark, which the model does not see. In the
  translation they are placed next to the words that translate their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from towernmt.documents.addresses import addresses_in, continues
from towernmt.documents.segments import Mark, Part, Shielded, Tag, plain_text
from towernmt.documents.shields import EVERYTHING, Attached, Protection, with_shields

_LAST_WORD = regex.compile(r"(?r)[\p{L}\p{N}]+$")
_FIRST_WORD = regex.compile(r"[\p{L}\p{N}]+")
_LETTER = regex.compile(r"\p{L}")
_LONGEST_FORMULA = 12
"""Maximum number of letters and digits before and after the raised or lowered signs of a formula, together."""
_LONGEST_NUMBER = 8
"""Maximum length of a number after a word that is treated as the number of a footnote."""

Tagged = str | Tag | Shielded


class ShieldedWithMarks(Shielded):
    """Shielded words with marks between their characters.

    Attributes:
        content: the parts of the segment that form the words.
    """

    __slots__ = ()

    @property
    def crossing(self) -> list[Mark]:
        """The marks among the words whose other mark is outside of them, in order."""
        marks = [part for part in self.content if isinstance(part, Mark)]
        kinds = {(mark.kind, mark.key) for mark in marks}
        other = {"open": "close", "close": "open"}
        return [mark for mark in marks if mark.kind != "single" and (other[mark.kind], mark.key) not in kinds]

    def without_crossing(self) -> ShieldedWithMarks:
        """Return the words without the marks whose other mark is outside."""
        crossing = set(map(id, self.crossing))
        return ShieldedWithMarks(self.text, tuple(part for part in self.content if id(part) not in crossing))


def protected(tagged: Sequence[Tagged], protection: Protection = EVERYTHING) -> Iterator[Tagged]:
    """Yield the parts of a segment, with protected words as `Shielded` and symbols as marks.

    Args:
        tagged: parts whose marks have roles.
        protection: the words and symbols to protect.
    """
    parts = _with_raised_signs(tagged)
    for part in _with_divided_addresses(parts) if protection.is_on else parts:
        if isinstance(part, str):
            for item in with_shields(part, protection):
                yield Tag(item, "single") if isinstance(item, Attached) else item
        else:
            yield part


def _with_raised_signs(tagged: Sequence[Tagged]) -> list[Tagged]:
    """Return the parts, with pairs around signs without letters as single marks, or with a formula as words."""
    result: list[Tagged] = []
    remaining: list[Tagged] = list(tagged)[::-1]
    while remaining:
        pair = _pair_at(remaining)
        last_word = _LAST_WORD.search(result[-1]) if result and isinstance(result[-1], str) else None
        word = last_word[0] if last_word else ""
        if pair is None or not (_is_raised(pair) or _is_number_of_footnote(pair, word, remaining)):
            result.append(remaining.pop())
            continue
        del remaining[-len(pair):]
        chain = _take_formula(pair, word, remaining) if _is_raised(pair) else pair
        has_words = any(isinstance(part, str) and _LETTER.search(part) for part in chain)
        if word and _is_raised(pair) and (has_words or _LETTER.match(word) and len(word) <= 2):
            result[-1] = str(result[-1])[:-len(word)]
            parts = _parts([word, *chain])
            result += [*([] if result[-1] else [result.pop()]), ShieldedWithMarks(plain_text(parts), parts)]
        else:
            result.append(Tag(Attached("single", -1, _parts(chain)), "single"))
    return [part for part in result if part != ""]


def _is_number_of_footnote(pair: Sequence[Tagged], word: str, remaining: Sequence[Tagged]) -> bool:
    """Return whether a pair without raised marks, at the end of reversed parts, surrounds the number after a word."""
    after = remaining[-1 - len(pair)] if len(remaining) > len(pair) else None
    is_inside_word = isinstance(after, str) and _FIRST_WORD.match(after) is not None
    number = _text(pair)
    return (len(word) >= 3 and _LETTER.match(word[-1]) is not None and not is_inside_word
            and len(number) <= _LONGEST_NUMBER and any(map(str.isdigit, number)) and not any(map(str.isspace, number)))


def _take_formula(pair: Sequence[Tagged], word: str, remaining: list[Tagged]) -> list[Tagged]:
    """Return a raised pair with what continues its formula: H<sub>2</sub>O, SO<sub>4</sub><sup>2-</sup>.

    Args:
        pair: the first raised or lowered signs.
        word: the word before them; may be empty.
        remaining: the reversed parts after the pair, from which the returned parts are removed.
    """
    chain = list(pair)
    while remaining:
        next_pair = _pair_at(remaining)
        if next_pair is not None and _is_raised(next_pair):
            chain += next_pair
            del remaining[-len(next_pair):]
            continue
        text = remaining[-1]
        if not word or not isinstance(text, str) or not isinstance(chain[-1], Tag):
            break
        match = _FIRST_WORD.match(text)
        if match is None or len(word) + len(match[0]) > _LONGEST_FORMULA:
            break
        remaining.pop()
        chain.append(match[0])
        if match.end() < len(text):
            remaining.append(text[match.end():])
            break
    return chain


def _pair_at(remaining: Sequence[Tagged]) -> list[Tagged] | None:
    """Return the pair at the end of reversed parts, if it has signs but no letters, and nothing else inside."""
    first = remaining[-1]
    if not isinstance(first, Tag) or first.role != "open":
        return None
    pair: list[Tagged] = []
    length = 0
    for part in reversed(remaining):
        pair.append(part)
        if isinstance(part, str):
            length += len(part)
            if length > 4 * _LONGEST_NUMBER or _LETTER.search(part):
                return None
        elif not isinstance(part, Tag) or part.role not in ("open", "close") or len(pair) > 4 * _LONGEST_NUMBER:
            return None
        elif part.role == "close" and part.mark.key == first.mark.key:
            return pair if _text(pair).strip() else None
    return None


def _is_raised(pair: Sequence[Tagged]) -> bool:
    return any(isinstance(part, Tag) and part.mark.is_raised for part in pair)


def _text(parts: Sequence[Tagged]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def _parts(tagged: Sequence[Tagged]) -> tuple[Part, ...]:
    return tuple(part.mark if isinstance(part, Tag) else part for part in tagged)


def _with_divided_addresses(tagged: Sequence[Tagged]) -> Iterator[Tagged]:
    """Yield the parts, with each address that has marks among its characters as one `ShieldedWithMarks`."""
    run: list[str | Tag] = []
    for part in (*tagged, None):
        if isinstance(part, str) or isinstance(part, Tag) and part.role in ("open", "close"):
            run.append(part)
            continue
        yield from _shield_divided_addresses(run)
        run = []
        if part is not None:
            yield part


def _shield_divided_addresses(parts: Sequence[str | Tag]) -> Iterator[Tagged]:
    """Yield a run of texts and pairs, with each address that marks divide as one part."""
    if sum(isinstance(part, str) for part in parts) < 2:
        yield from parts
        return
    run = _Run(parts)
    done, offset = 0, 0     # index of the first part that was not yielded, and offset in its text
    for start, end in addresses_in(run.text):
        address = run.divided_address(start, end, done)
        if address is None:
            continue
        begin = run.first_mark(address, done)
        after = run.last_mark(address, begin)
        inside = [*parts[begin:address.first], str(parts[address.first])[address.start:],
                  *parts[address.first + 1:address.last], str(parts[address.last])[:address.end],
                  *parts[address.last + 1:after + 1]]
        yield from run.between(done, offset, begin, address.start if begin == address.first else 0)
        content = _parts(inside)
        words = ShieldedWithMarks(plain_text(content), content)
        yield words
        crossing = set(map(id, words.crossing))
        yield from (part for part in inside if isinstance(part, Tag) and id(part.mark) in crossing)
        done, offset = (address.last, address.end) if after == address.last else (after + 1, 0)
    yield from run.between(done, offset, len(parts), 0)


class _DividedAddress(NamedTuple):
    """Location of an address that extends over several texts.

    Attributes:
        first: index of the part in which it starts.
        start: offset in this part.
        last: index of the part in which it ends.
        end: offset in this part, exclusive.
    """

    first: int
    start: int
    last: int
    end: int


class _Run:
    """Consecutive texts and pairs of a segment.

    Attributes:
        text: all texts, joined.
    """

    def __init__(self, parts: Sequence[str | Tag]) -> None:
        self._parts = parts
        self.text = "".join(part for part in parts if isinstance(part, str))
        lengths = (len(part) if isinstance(part, str) else 0 for part in parts)
        self._starts = list(accumulate(lengths, initial=0))         # of each part in the text
        self._pairs: dict[int, tuple[int, int]] = {}                # index of a mark: indices of both marks of its pair
        opened: dict[int, int] = {}
        for index, part in enumerate(parts):
            if isinstance(part, Tag) and part.role == "open":
                opened[part.mark.key] = index
            elif isinstance(part, Tag) and part.mark.key in opened:
                self._pairs[index] = self._pairs[opened[part.mark.key]] = (opened[part.mark.key], index)

    def divided_address(self, start: int, end: int, done: int) -> _DividedAddress | None:
        """Return the location of an address; None if it is in one part.

        Args:
            start: index in the text.
            end: index in the text, exclusive. If a pair begins with the address and the address can end with the pair,
                it ends there.
            done: index of the first part that may contain it.
        """
        first = next((index for index in range(done, len(self._parts)) if isinstance(self._parts[index], str)
                      and self._starts[index + 1] > start), None)
        if first is None:
            return None
        last = first
        for index in range(first + 1, len(self._parts)):
            if self._starts[index] >= end:
                break
            if self._ends_address(index, start):
                end = self._starts[index]
                break
            if isinstance(self._parts[index], str):
                last = index
        if last == first:
            return None
        return _DividedAddress(first, start - self._starts[first], last, end - self._starts[last])

    def _ends_address(self, index: int, start: int) -> bool:
        """Return whether a part is the end of a pair that surrounds exactly an address."""
        part = self._parts[index]
        if not isinstance(part, Tag) or part.role != "close" or index not in self._pairs:
            return False
        end = self._starts[index]
        return (self._starts[self._pairs[index][0]] == start
                and not continues(self.text[start:end], self.text[end:end + 2]))

    def first_mark(self, address: _DividedAddress, done: int) -> int:
        """Return the index of the first mark directly before an address, of a pair that ends inside it.

        Without such a mark, it is the index of the address.
        """
        begin, last = address.first, address.last
        if address.start > 0:
            return begin
        inside = range(begin + 1, last)
        opening = min((self._pairs[index][0] for index in inside if index in self._pairs), default=begin)
        while begin > max(opening, done) and isinstance(self._parts[begin - 1], Tag):
            begin -= 1
        return begin

    def last_mark(self, address: _DividedAddress, begin: int) -> int:
        """Return the index of the last mark directly after an address, of a pair that begins inside it.

        Without such a mark, it is the index of the last part of the address.
        """
        last = address.last
        if self._starts[last] + address.end < self._starts[last + 1]:
            return last
        following_text = next((index for index in range(last + 1, len(self._parts))
                               if isinstance(self._parts[index], str)), len(self._parts))
        return max((index for index in range(last + 1, following_text)
                    if index in self._pairs and begin <= self._pairs[index][0] < last), default=last)

    def between(self, first: int, offset: int, last: int, end: int) -> Iterator[str | Tag]:
        """Yield the parts from an offset in one part to an offset in another."""
        for index in range(first, min(last + 1, len(self._parts))):
            part = self._parts[index]
            if isinstance(part, str):
                text = part[offset if index == first else 0:end if index == last else len(part)]
                if text:
                    yield text
            elif index < last:
                yield part
