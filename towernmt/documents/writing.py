"""A translated sentence as parts of a segment: words, marks, and the white space that the source has beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from towernmt.documents.alignment import TargetAtom
from towernmt.documents.segments import Mark, Part, Segment
from towernmt.documents.sentences import Gap, SourceSentence, Tag
from towernmt.documents.shields import Found


class _Spaces(NamedTuple):
    """Whether the source has white space beside a mark.

    Attributes:
        before, behind: right beside it.
        anywhere: between the atoms that it is between.
    """

    before: bool
    behind: bool
    anywhere: bool


def written(sentence: SourceSentence, atoms: Sequence[TargetAtom], marks: Sequence[Sequence[Mark]]) -> list[Part]:
    """The parts of a translation.

    Args:
        marks: before each atom, and behind the last.
    """
    spaces = _spaces_beside(sentence.gaps)
    parts: list[Part] = []
    for place, there in enumerate(marks):
        parts += _between(sentence, atoms, place, there, spaces)
        if place < len(atoms):
            atom = atoms[place]
            shield = None if atom.stands_for is None else sentence.atoms[atom.stands_for].shield
            parts.append(atom.text if shield is None else shield)
    return parts


def joined(parts: Iterable[Part]) -> Segment:
    """A segment of parts: strings that stand beside each other become one, and so do words that were found in them."""
    made: list[Part] = []
    text: list[str] = []
    for part in (*parts, None):
        if isinstance(part, str | Found):
            text.append(part if isinstance(part, str) else part.text)
            continue
        if whole := "".join(text):
            made.append(whole)
        text.clear()
        if part is not None:
            made.append(part)
    return tuple(made)


def _between(sentence: SourceSentence, atoms: Sequence[TargetAtom], place: int, marks: Sequence[Mark],
             spaces: dict[int, _Spaces]) -> list[Part]:
    """What is before an atom of a translation, or behind the last."""
    is_inside = 0 < place < len(atoms)
    gap = _same_gap(sentence, atoms, place)
    if gap is not None and (not is_inside or atoms[place].space == sentence.spaces[gap]):
        own = _parts(sentence.gaps[gap])
        if [id(part) for part in own if isinstance(part, Mark)] == [*map(id, marks)]:
            return own
    if is_inside:
        space = " " if atoms[place].space else ""
        if any(mark.kind == "single" and not spaces[id(mark)].anywhere for mark in marks):
            space = ""      # as in `one<br>two`
    else:
        space = "".join(part for part in _parts(sentence.gaps[-1 if place else 0]) if isinstance(part, str))
    best = _best_place(marks, spaces)
    return [*marks[:best], *([space] if space else []), *marks[best:]]


def _parts(gap: Gap) -> list[Part]:
    return [thing.mark if isinstance(thing, Tag) else thing for thing in gap]


def _same_gap(sentence: SourceSentence, atoms: Sequence[TargetAtom], place: int) -> int | None:
    """The gap of the source that this one of the translation stands for: the atoms beside it are linked."""
    last = len(sentence.atoms) - 1
    before = atoms[place - 1].sources[-1:] if place else [-1]
    behind = atoms[place].sources[:1] if place < len(atoms) else [last + 1]
    return behind[0] if before and behind and before[0] + 1 == behind[0] else None


def _spaces_beside(gaps: Sequence[Gap]) -> dict[int, _Spaces]:
    """The white space beside each mark in the source, by the mark's identity."""
    found = {}
    for gap in gaps:
        anywhere = any(isinstance(thing, str) for thing in gap)
        things: list[str | Tag | None] = [None, *gap, None]
        for before, thing, behind in zip(things, things[1:], things[2:], strict=False):
            if isinstance(thing, Tag):
                found[id(thing.mark)] = _Spaces(isinstance(before, str), isinstance(behind, str), anywhere)
    return found


def _best_place(marks: Sequence[Mark], spaces: dict[int, _Spaces]) -> int:
    """Behind how many of some marks the space goes: where most had one beside them in the source.

    Else it goes behind marks that close, and before those that open.
    """
    def fits(place: int) -> tuple[int, int]:
        before = marks[place - 1] if place else None
        behind = marks[place] if place < len(marks) else None
        had = (before is not None and spaces[id(before)].behind) + (behind is not None and spaces[id(behind)].before)
        return had, (before is not None and before.kind == "close") + (behind is not None and behind.kind == "open")

    return max(range(len(marks) + 1), key=fits)
