"""Protect words and symbols of a segment from the translation.

- Words become one `Shielded`, which the model sees as a placeholder. An address may extend over several elements, such
  as `https://x.de/<wbr>ab`; its marks are then inside the `Shielded`.
- Symbols, and raised signs such as the number of a footnote, become a mark, which the model does not see. In the
  translation they are placed next to the words that translate their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import regex  # type: ignore[import-untyped]

from towernmt.documents.segments import Mark, Part, Shielded, Tag, plain_text
from towernmt.documents.shields import EVERYTHING, Attached, Protection, addresses_in, continues, with_shields

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
    raised = _with_raised_signs(tagged)
    for part in _with_joined_addresses(raised) if protection.is_on else raised:
        if isinstance(part, str):
            for found in with_shields(part, protection):
                yield Tag(found, "single") if isinstance(found, Attached) else found
        else:
            yield part


def _with_raised_signs(tagged: Sequence[Tagged]) -> list[Tagged]:
    """Return the parts, with pairs around signs without letters as single marks, or with a formula as words."""
    made: list[Tagged] = []
    rest: list[Tagged] = list(tagged)[::-1]
    while rest:
        pair = _pair_at(rest)
        if pair is None:
            made.append(rest.pop())
            continue
        before = _LAST_WORD.search(made[-1]) if made and isinstance(made[-1], str) else None
        word = before[0] if before else ""
        after = rest[-1 - len(pair)] if len(rest) > len(pair) else None
        follows = _FIRST_WORD.match(after) if isinstance(after, str) else None
        if not _is_raised(pair) and (not word or not _LETTER.match(word[-1]) or len(word) < 3 or follows
                                     or not any(map(str.isdigit, _text(pair)))
                                     or len(_text(pair)) > _LONGEST_NUMBER or any(map(str.isspace, _text(pair)))):
            made += pair[:1]
            rest.pop()
            continue
        del rest[-len(pair):]
        chain = list(pair)
        while _is_raised(chain) and rest:       # H<sub>2</sub>O, SO<sub>4</sub><sup>2-</sup>
            further = _pair_at(rest)
            if further is not None and _is_raised(further):
                chain += further
                del rest[-len(further):]
            elif isinstance(rest[-1], str) and isinstance(chain[-1], Tag) and (
                    found := _FIRST_WORD.match(rest[-1])) and len(word) + len(found[0]) <= _LONGEST_FORMULA and word:
                text = str(rest.pop())
                chain.append(found[0])
                if text[found.end():]:
                    rest.append(text[found.end():])
                    break
            else:
                break
        has_words = any(isinstance(part, str) and _LETTER.search(part) for part in chain)
        if word and _is_raised(pair) and (has_words or _LETTER.match(word) and len(word) <= 2):
            made[-1] = str(made[-1])[:-len(word)]
            parts = _parts([word, *chain])
            made += [*([] if made[-1] else [made.pop()]), ShieldedWithMarks(plain_text(parts), parts)]
        else:
            made.append(Tag(Attached("single", -1, _parts(chain)), "single"))
    return [part for part in made if part != ""]


def _pair_at(rest: Sequence[Tagged]) -> list[Tagged] | None:
    """Return the pair at the end of reversed parts, if it has signs but no letters, and nothing else inside."""
    first = rest[-1]
    if not isinstance(first, Tag) or first.role != "open":
        return None
    found: list[Tagged] = []
    length = 0
    for part in reversed(rest):
        found.append(part)
        if isinstance(part, str):
            length += len(part)
            if length > 4 * _LONGEST_NUMBER or _LETTER.search(part):
                return None
        elif not isinstance(part, Tag) or part.role not in ("open", "close") or len(found) > 4 * _LONGEST_NUMBER:
            return None
        elif part.role == "close" and part.mark.key == first.mark.key:
            return found if _text(found).strip() else None
    return None


def _is_raised(pair: Sequence[Tagged]) -> bool:
    return any(isinstance(part, Tag) and part.mark.is_raised for part in pair)


def _text(parts: Sequence[Tagged]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def _parts(tagged: Sequence[Tagged]) -> tuple[Part, ...]:
    return tuple(part.mark if isinstance(part, Tag) else part for part in tagged)


def _with_joined_addresses(tagged: Sequence[Tagged]) -> Iterator[Tagged]:
    """Yield the parts, with addresses that have marks among their characters as one `Joined` each."""
    run: list[str | Tag] = []
    for part in (*tagged, None):
        if isinstance(part, str) or isinstance(part, Tag) and part.role in ("open", "close"):
            run.append(part)
            continue
        yield from _joined_in(run)
        run = []
        if part is not None:
            yield part


def _joined_in(run: Sequence[str | Tag]) -> Iterator[Tagged]:
    """Yield the parts of a run of text and pairs, with the addresses that marks divide as one part each."""
    texts = [part for part in run if isinstance(part, str)]
    starts: list[int] = []      # where in the text each part begins
    length = 0
    for part in run:
        starts.append(length)
        length += len(part) if isinstance(part, str) else 0
    if len(texts) < 2:
        yield from run
        return
    text = "".join(texts)
    opened: dict[int, int] = {}
    pairs: dict[int, tuple[int, int]] = {}      # of each mark: where its pair begins and ends, by index
    for index, part in enumerate(run):
        if isinstance(part, Tag) and part.role == "open":
            opened[part.mark.key] = index
        elif isinstance(part, Tag) and part.mark.key in opened:
            pairs[index] = pairs[opened[part.mark.key]] = (opened[part.mark.key], index)
    done = 0            # index in the run
    offset = 0          # in the text of the part at this index
    for start, end in addresses_in(text):
        first = next((index for index in range(done, len(run)) if isinstance(run[index], str)
                      and starts[index] + len(run[index]) > start), None)
        if first is None:
            break
        last = first
        for index in range(first + 1, len(run)):
            part = run[index]
            if starts[index] >= end:
                break
            here = starts[index]
            if isinstance(part, Tag) and part.role == "close" and index in pairs and (
                    starts[pairs[index][0]] == start and not continues(text[start:here], text[here:here + 2])):
                end = here
                break
            last = index if isinstance(part, str) else last
        if last == first:
            continue
        begin_offset, end_offset = start - starts[first], end - starts[last]
        inside: list[str | Tag] = [str(run[first])[begin_offset:], *run[first + 1:last], str(run[last])[:end_offset]]
        begin = first
        while begin_offset == 0 and begin > done and (
                any(index in pairs and pairs[index][0] < first < pairs[index][1] <= last and pairs[index][0] < begin
                    for index in range(first + 1, last))) and isinstance(run[begin - 1], Tag):
            begin -= 1
        after = last
        if end == starts[last] + len(str(run[last])):
            ends = [index for index in range(last + 1, _text_after(run, last)) if index in pairs
                    and begin <= pairs[index][0] < last and pairs[index][1] == index]
            after = max(ends, default=last)
        inside = [*run[begin:first], *inside, *run[last + 1:after + 1]]
        yield from _rest(run, done, offset, begin, begin_offset if begin == first else 0)
        parts = _parts(inside)
        made = ShieldedWithMarks(plain_text(parts), parts)
        yield made
        crossing = set(map(id, made.crossing))
        yield from (part for part in inside if isinstance(part, Tag) and id(part.mark) in crossing)
        done, offset = (last, end_offset) if after == last else (after + 1, 0)
    yield from _rest(run, done, offset, len(run), 0)


def _text_after(run: Sequence[str | Tag], index: int) -> int:
    """Return the index of the next text after an index; the length of the run if no text follows."""
    return next((number for number in range(index + 1, len(run)) if isinstance(run[number], str)), len(run))


def _rest(run: Sequence[str | Tag], first: int, offset: int, last: int, end: int) -> Iterator[str | Tag]:
    """Yield the run from an offset in one part to an offset in another."""
    for index in range(first, min(last + 1, len(run))):
        part = run[index]
        if isinstance(part, str):
            text = part[offset if index == first else 0:end if index == last else len(part)]
            if text:
                yield text
        elif index < last:
            yield part
