"""Segments cut into sentences: the text that a model sees of each, and the marks inside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.documents.atoms import Atom, is_unspaced, pieces_of
from towernmt.documents.segments import Mark, Segment, Shielded
from towernmt.documents.shields import stand_ins, with_shields


class Tag(NamedTuple):
    """A mark, and what it is among those of its segment.

    Attributes:
        mark: as the format gave it.
        role: its kind; "lone" for an opening or closing mark that has no other one, or crosses another pair.
    """

    mark: Mark
    role: Literal["open", "close", "single", "lone"]


Gap = list[str | Tag]
"""What is between two atoms: white space and marks."""


@dataclass(frozen=True)
class SourceSentence:
    """A sentence of a segment.

    Attributes:
        atoms: of which it is made.
        gaps: what is before each atom and behind the last. What is between sentences is not here, but for the marks of
            pairs whose other mark is inside.
    """

    atoms: Sequence[Atom]
    gaps: Sequence[Gap]

    @cached_property
    def spaces(self) -> list[bool]:
        """Whether a model sees a space before each atom; the first is False."""
        return [False, *(_has_space(before, gap, atom)
                         for before, gap, atom in zip(self.atoms, self.gaps[1:], self.atoms[1:], strict=False))]

    @cached_property
    def names(self) -> dict[str, int]:
        """The stand-ins, and the places of the shielded atoms that they stand for."""
        text = " ".join(atom.text for atom in self.atoms if atom.shield is None)
        shielded = [place for place, atom in enumerate(self.atoms) if atom.shield is not None]
        return dict(zip(stand_ins(len(shielded), text), shielded, strict=True))

    @cached_property
    def seen(self) -> list[str]:
        """What a model sees of each atom: its text, or its stand-in."""
        names = iter(self.names)
        return [atom.text if atom.shield is None else next(names) for atom in self.atoms]

    @cached_property
    def text(self) -> str:
        """What a model sees: plain text, with stand-ins for shielded words."""
        return "".join(f" {text}" if space else text for space, text in zip(self.spaces, self.seen, strict=True))

    @cached_property
    def words(self) -> list[str]:
        """The words of its text, with shielded words as they are."""
        words: list[str] = []
        for space, atom in zip(self.spaces, self.atoms, strict=True):
            if space or not words:
                words.append("")
            words[-1] += atom.text
        return words

    @cached_property
    def is_plain(self) -> bool:
        """Whether there is nothing in it but words, signs and single spaces."""
        return not self.names and not any(gap and gap != [" "] for gap in self.gaps)

    @cached_property
    def is_unspaced(self) -> bool:
        """Whether it is in a script that has no spaces between words."""
        return is_unspaced(self.text)


@dataclass(frozen=True)
class SplitSegment:
    """A segment as sentences.

    Attributes:
        sentences: those with words.
        between: one more: what is before, between and behind them, which stays.
    """

    sentences: list[SourceSentence]
    between: list[list[str | Mark | Shielded]]


def split(segment: Segment, language: str | None) -> SplitSegment:
    """Cut a segment into sentences, by the library `sentencex`.

    Args:
        language: of the text; None: it is one sentence.
    Raises:
        SettingsError: the library is missing.
    """
    atoms, gaps = _atoms_and_gaps(segment)
    made = SplitSegment([], [[]])
    pairs = _gaps_of_pairs(gaps)
    done = 0        # so much of the gap before a sentence is the former one's
    for first, last in _ranges(atoms, gaps, language):
        own, before, behind = atoms[first:last], gaps[first], gaps[last]
        if not any(atom.is_word and atom.shield is None for atom in own):
            for atom, gap in zip(own, [before[done:], *gaps[first + 1:last]], strict=True):
                made.between[-1] += [*_as_parts(gap), atom.text if atom.shield is None else atom.shield]
            done = 0
            continue
        inside = range(first + 1, last)
        begin = next((place for place, thing in enumerate(before) if isinstance(thing, Tag)
                      and thing.role == "open" and pairs[thing.mark.key][1] in inside), len(before))
        end = next((place for place in range(len(behind), 0, -1) if isinstance(thing := behind[place - 1], Tag)
                    and thing.role == "close" and pairs[thing.mark.key][0] in inside), 0)
        made.between[-1].extend(_as_parts(before[done:begin]))
        made.sentences.append(SourceSentence(own, [before[begin:], *gaps[first + 1:last], behind[:end]]))
        made.between.append([])
        done = end
    made.between[-1].extend(_as_parts(gaps[-1][done:]))
    return made


def _gaps_of_pairs(gaps: Sequence[Gap]) -> dict[int, tuple[int, int]]:
    """In which gaps the pairs begin and end, by their keys."""
    begun: dict[int, int] = {}
    pairs = {}
    for place, gap in enumerate(gaps):
        for thing in gap:
            if isinstance(thing, Tag) and thing.role == "open":
                begun[thing.mark.key] = place
            elif isinstance(thing, Tag) and thing.role == "close":
                pairs[thing.mark.key] = begun[thing.mark.key], place
    return pairs


def _as_parts(gap: Gap) -> Iterable[str | Mark]:
    return (thing.mark if isinstance(thing, Tag) else thing for thing in gap)


def _atoms_and_gaps(segment: Segment) -> tuple[list[Atom], list[Gap]]:
    """The atoms, and what is before each and behind the last."""
    atoms: list[Atom] = []
    gaps: list[Gap] = [[]]

    def add(atom: Atom) -> None:
        atoms.append(atom)
        gaps.append([])

    for part in _tagged(segment):
        if isinstance(part, Tag):
            gaps[-1].append(part)
        elif isinstance(part, Shielded):
            add(Atom(part.text, True, part))
        else:
            for found in with_shields(part):
                if isinstance(found, Shielded):
                    add(Atom(found.text, True, found))
                    continue
                for kind, piece in pieces_of(found):
                    if kind == " ":
                        gaps[-1].append(piece)
                    else:
                        add(Atom(piece, kind == "a"))
    return atoms, gaps


def _tagged(segment: Segment) -> list[str | Tag | Shielded]:
    """The parts, with the role of each mark."""
    found: list[str | Tag | Shielded] = []
    opened: list[tuple[int, int]] = []          # keys, and places in `found`
    keys: set[int] = set()
    for part in segment:
        if not isinstance(part, Mark):
            found.append(part)
            continue
        found.append(Tag(part, "single" if part.kind == "single" else "lone"))
        if part.kind == "open" and part.key not in keys:
            opened.append((part.key, len(found) - 1))
            keys.add(part.key)
        elif part.kind == "close" and part.key in keys:
            key, place = opened.pop()
            keys.remove(key)
            while key != part.key:      # it was not closed before: it crosses this pair, and is lone
                key, place = opened.pop()
                keys.remove(key)
            found[place] = Tag(found[place].mark, "open")   # type: ignore[union-attr]
            found[-1] = Tag(part, "close")
    return found


def _has_space(before: Atom, gap: Gap, after: Atom) -> bool:
    """Whether a model sees a space between two atoms.

    It does where there is one; where a line break or an image is between words; and beside shielded words, whose
    stand-ins must not become parts of other words.
    """
    if any(isinstance(thing, str) for thing in gap):
        return True
    if not (before.is_word and after.is_word):
        return False
    return (before.shield is not None or after.shield is not None
            or any(isinstance(thing, Tag) and thing.role == "single" for thing in gap))


def _ranges(atoms: Sequence[Atom], gaps: Sequence[Gap], language: str | None) -> list[tuple[int, int]]:
    """The atoms of each sentence: the first, and behind the last."""
    if not atoms:
        return []
    if language is None:
        return [(0, len(atoms))]
    starts, text = [], ""
    pieces: list[str] = []
    length = 0
    for place, atom in enumerate(atoms):
        space = " " if place and _has_space(atoms[place - 1], gaps[place], atom) else ""
        written = space + (atom.text if atom.shield is None else "X")
        starts.append(length + len(space))
        length += len(written)
        pieces.append(written)
    text = "".join(pieces)
    found = sentences_of(text, language)
    ranges, first, end = [], 0, 0
    for sentence in found:
        end += len(sentence)
        last = first
        while last < len(atoms) and starts[last] < end:
            last += 1
        if last > first:
            ranges.append((first, last))
        first = last
    return ranges


def sentences_of(text: str, language: str) -> list[str]:
    """The sentences of a text with the space behind them, by the library.

    Raises:
        SettingsError: it is missing.
    """
    try:
        from sentencex import segment  # type: ignore[import-untyped]
    except ImportError:
        raise SettingsError("Texts are split into sentences by sentencex, which is not installed: "
                            "pip install 'towernmt[serve]'.") from None
    found = list(segment(language, text))
    return found if "".join(found) == text else [text]
