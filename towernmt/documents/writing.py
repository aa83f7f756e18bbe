"""Convert a translated sentence to the parts of a segment: words, marks, and white space as in the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from towernmt.documents.atom_alignment import TargetAtom
from towernmt.documents.protection import ShieldedWithMarks
from towernmt.documents.segments import UNSPACED, Mark, Part, Segment, Tag
from towernmt.documents.shields import Attached, PlainShielded
from towernmt.documents.source_sentences import Gap, SourceSentence

_UNSPACED = re.compile(f"[{UNSPACED}]")


class _AdjacentSpaces(NamedTuple):
    """White space next to a mark in the source.

    Attributes:
        before, after: whether white space directly precedes or follows the mark.
        anywhere: whether white space is between the atom before the mark and the atom after it.
    """

    before: bool
    after: bool
    anywhere: bool


def written_parts(sentence: SourceSentence, atoms: Sequence[TargetAtom], marks: Sequence[Sequence[Mark]]) -> list[Part]:
    """Return the parts of a translation; `marks` are those before each atom, and after the last one."""
    return [part for _, part in written_atoms(sentence, atoms, marks)]


def written_atoms(sentence: SourceSentence, atoms: Sequence[TargetAtom],
                  marks: Sequence[Sequence[Mark]]) -> Iterator[tuple[bool, Part]]:
    """Yield whether each part of a translation is an atom, and the part; see `written_parts`."""
    spaces = _adjacent_spaces(sentence.gaps)
    words: ShieldedWithMarks | None = None
    for index, marks_here in enumerate(marks):
        between = _between(sentence, atoms, index, marks_here, spaces)
        if words is not None:
            crossing = words.crossing
            stays = [*map(id, between[:len(crossing)])] == [*map(id, crossing)]
            yield True, words if stays else words.without_crossing()
            between = between[len(crossing):] if stays else between
            words = None
        yield from ((False, part) for part in between)
        if index < len(atoms):
            atom = atoms[index]
            shield = None if atom.stands_for is None else sentence.atoms[atom.stands_for].shield
            if isinstance(shield, ShieldedWithMarks):
                words = shield
            else:
                yield True, atom.text if shield is None else shield


def without_empty_pairs(source: Segment, parts: Iterable[Part]) -> list[Part]:
    """Return the parts of a translation without the pairs that surround nothing, unless they do so in the source."""
    filled_in_source = _pairs_by_content(source)[True]
    expanded = [*_expanded(parts)]
    emptied = _pairs_by_content(expanded)[False] & filled_in_source
    return [part for part in expanded if not (isinstance(part, Mark) and part.kind != "single" and part.key in emptied)]


def _pairs_by_content(parts: Sequence[Part]) -> dict[bool, set[int]]:
    """Return the keys of the pairs with something between their marks (True), and of those with nothing (False)."""
    amounts: dict[int, int] = {}
    pairs: dict[bool, set[int]] = {True: set(), False: set()}
    amount = 0
    for part in parts:
        if not isinstance(part, Mark) or part.kind == "single":
            amount += not isinstance(part, str) or bool(part.strip())
        elif part.kind == "open":
            amounts[part.key] = amount
        elif part.key in amounts:
            pairs[amount > amounts.pop(part.key)].add(part.key)
    return pairs


def to_segment(parts: Iterable[Part]) -> Segment:
    """Return a segment of parts, with adjacent strings joined."""
    result: list[Part] = []
    text: list[str] = []
    for part in (*parts, None):
        if isinstance(part, str | PlainShielded):
            text.append(part if isinstance(part, str) else part.text)
            continue
        if joined_text := "".join(text):
            result.append(joined_text)
        text.clear()
        if part is not None:
            result.append(part)
    return tuple(result)


def _expanded(parts: Iterable[Part]) -> Iterable[Part]:
    """Yield the parts; of joined words and of attached signs, the parts that they are made of."""
    for part in parts:
        if isinstance(part, ShieldedWithMarks | Attached):
            yield from _expanded(part.content)
        else:
            yield part


def _between(sentence: SourceSentence, atoms: Sequence[TargetAtom], index: int, marks: Sequence[Mark],
             spaces: dict[int, _AdjacentSpaces]) -> list[Part]:
    """Return white space and marks before an atom of a translation, or after the last one."""
    is_inside = 0 < index < len(atoms)
    gap = _same_gap(sentence, atoms, index)
    if gap is not None and (not is_inside or atoms[index].space == sentence.spaces[gap]):
        gap_parts = _parts(sentence.gaps[gap])
        if [id(part) for part in gap_parts if isinstance(part, Mark)] == [*map(id, marks)]:
            return gap_parts if gap_parts or not is_inside or not _needs_space(sentence, atoms, index, gap) else [" "]
    if is_inside:
        space = " " if atoms[index].space and not _is_joined(sentence, atoms, index) else ""
        if any(mark.kind == "single" and not spaces[id(mark)].anywhere for mark in marks):
            space = ""      # as in `one<br>two`
    else:
        space = "".join(part for part in _parts(sentence.gaps[-1 if index else 0]) if isinstance(part, str))
    split = _marks_before_space(marks, spaces)
    parts: list[Part] = [*marks[:split], *([space] if space else []), *marks[split:]]
    if any(isinstance(mark, Attached) for mark in marks):
        return _with_spaces_of_symbols(parts, spaces, index > 0, index < len(atoms))
    return parts


def _with_spaces_of_symbols(parts: Sequence[Part], spaces: dict[int, _AdjacentSpaces], follows: bool,
                            precedes: bool) -> list[Part]:
    """Return the parts between two atoms, with spaces next to symbols as in the source.

    `follows` says whether an atom is before the parts, `precedes` whether an atom is after them.
    """
    result: list[Part] = []
    for index, part in enumerate(parts):
        previous = result[-1] if result else None
        following = parts[index + 1] if index + 1 < len(parts) else None
        if not isinstance(part, Attached):
            result.append(part)
            continue
        if spaces[id(part)].before and (previous is not None or follows) and not isinstance(previous, str):
            result.append(" ")
        result.append(part)
        if spaces[id(part)].after and (following is not None or precedes) and not isinstance(following, str):
            result.append(" ")
    return result


def _needs_space(sentence: SourceSentence, atoms: Sequence[TargetAtom], index: int, gap: int) -> bool:
    """Return whether shielded words need a space in the translation that they lack in the source.

    The source is in a script without spaces there, and the translation is not: `看https://x.de` becomes `see https://x.de`.
    """
    neighbours = [(sentence.atoms[gap - 1].text[-1:], atoms[index - 1]), (sentence.atoms[gap].text[:1], atoms[index])]
    return (sentence.spaces[gap] and any(_UNSPACED.match(letter) for letter, _ in neighbours)
            and not any(atom.stands_for is None and _UNSPACED.match(atom.text) for _, atom in neighbours))


def _is_joined(sentence: SourceSentence, atoms: Sequence[TargetAtom], index: int) -> bool:
    """Return whether shielded words are next to a script without spaces, as in the source."""
    before, after = atoms[index - 1], atoms[index]
    for shield, other, edge in ((before.stands_for, after, 1), (after.stands_for, before, 0)):
        if (shield is not None and other.stands_for is None and _UNSPACED.match(other.text)
                and 0 < shield + edge < len(sentence.atoms) and not sentence.gaps[shield + edge]):
            return True
    return False


def _parts(gap: Gap) -> list[Part]:
    return [item.mark if isinstance(item, Tag) else item for item in gap]


def _same_gap(sentence: SourceSentence, atoms: Sequence[TargetAtom], index: int) -> int | None:
    """Return the index of the source gap whose neighbours are aligned with those of a gap in the translation."""
    last = len(sentence.atoms) - 1
    before = atoms[index - 1].sources[-1:] if index else [-1]
    after = atoms[index].sources[:1] if index < len(atoms) else [last + 1]
    return after[0] if before and after and before[0] + 1 == after[0] else None


def _adjacent_spaces(gaps: Sequence[Gap]) -> dict[int, _AdjacentSpaces]:
    """Return the white space next to each mark in the source, by the mark's identity."""
    spaces = {}
    for gap in gaps:
        anywhere = any(isinstance(item, str) for item in gap)
        items: list[str | Tag | None] = [None, *gap, None]
        for before, item, after in zip(items, items[1:], items[2:], strict=False):
            if isinstance(item, Tag):
                spaces[id(item.mark)] = _AdjacentSpaces(isinstance(before, str), isinstance(after, str), anywhere)
    return spaces


def _marks_before_space(marks: Sequence[Mark], spaces: dict[int, _AdjacentSpaces]) -> int:
    """Return the number of marks before the space between two atoms.

    The space goes where most marks have one in the source; otherwise after closing marks and before opening ones.
    """
    def fits(index: int) -> tuple[int, int]:
        before = marks[index - 1] if index else None
        after = marks[index] if index < len(marks) else None
        in_source = [before is not None and spaces[id(before)].after, after is not None and spaces[id(after)].before]
        by_kind = [before is not None and before.kind == "close", after is not None and after.kind == "open"]
        return sum(in_source), sum(by_kind)

    return max(range(len(marks) + 1), key=fits)
