"""From links of words to links of atoms: which atoms of a sentence an atom of its translation stands for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from towernmt.documents.atoms import Atom, is_unspaced, pieces_of
from towernmt.documents.sentences import SourceSentence
from towernmt.documents.shields import find_stand_ins

Link = tuple[int, int]


@dataclass
class TargetAtom:
    """An atom of a translation.

    Attributes:
        text: as the model wrote it.
        is_word: letters or digits; else a sign.
        space: whether a space is before it.
        stands_for: the place of the shielded atom of the source that it stands for; None: it is text.
        sources: the places of the atoms of the source that it is linked with, in their order.
        word: the number of its word in the translation; None: the model did not write it.
    """

    text: str
    is_word: bool
    space: bool
    stands_for: int | None = None
    sources: list[int] = field(default_factory=list)
    word: int | None = None


@dataclass
class _Word:
    """Atoms between spaces.

    Attributes:
        atoms: all of them.
        core: where the word's own atoms begin and end; before and behind are signs.
    """

    atoms: list[int]
    core: tuple[int, int]

    @classmethod
    def of(cls, places: list[int], is_word: Sequence[bool]) -> _Word:
        inner = [number for number, place in enumerate(places) if is_word[place]]
        return cls(places, (inner[0], inner[-1] + 1) if inner else (0, len(places)))

    @property
    def own(self) -> list[int]:
        return self.atoms[self.core[0]:self.core[1]]

    @property
    def before(self) -> list[int]:
        return self.atoms[:self.core[0]][::-1]

    @property
    def behind(self) -> list[int]:
        return self.atoms[self.core[1]:]


def aligned(sentence: SourceSentence, text: str, links: Iterable[Link] | None) -> list[TargetAtom]:
    """The atoms of a translation with their links.

    Args:
        text: the translation.
        links: of words, (source word, target word); without any, each atom is linked with those as far from the
            beginning as it is, in shares of the whole. So it is where words have no spaces between them.
    """
    unspaced = sentence.is_unspaced or is_unspaced(text)
    source = _words([atom.is_word for atom in sentence.atoms], sentence.spaces)
    atoms = _target_atoms(sentence, text, unspaced)
    there = {atom.stands_for for atom in atoms}
    sizes = [0 if atom.shield is not None and place not in there else len(atom.text)
             for place, atom in enumerate(sentence.atoms)]      # a lost stand-in takes no part
    if unspaced:
        for place, near in _in_proportion(sizes, [len(atom.text) for atom in atoms]):
            atoms[near].sources.append(place)
    else:
        target = _words([atom.is_word for atom in atoms], [atom.space for atom in atoms])
        found = [(one, other) for one, other in links or () if one < len(source) and other < len(target)]
        if not found:
            found = _in_proportion([sum(sizes[place] for place in word.atoms) for word in source],
                                   [sum(len(atoms[place].text) for place in word.atoms) for word in target])
        atoms = _split_copies(sentence, source, atoms, target, found)
        target = _words([atom.is_word for atom in atoms], [atom.space for atom in atoms])
        _link_words(sentence.atoms, atoms, source, target, found)
        _link_signs(sentence.atoms, atoms)
    copied = {atom.stands_for for atom in atoms if atom.stands_for is not None}
    for atom in atoms:
        atom.sources = ([atom.stands_for] if atom.stands_for is not None
                        else sorted(place for place in set(atom.sources) if place not in copied))
    return _without_empty_ones(atoms)


def _without_empty_ones(atoms: list[TargetAtom]) -> list[TargetAtom]:
    for place, atom in enumerate(atoms[:-1]):
        if not atom.text:
            atoms[place + 1].space |= atom.space
    kept = [atom for atom in atoms if atom.text]
    if kept:
        kept[0].space = False
    return kept


def _words(is_word: Sequence[bool], spaces: Sequence[bool]) -> list[_Word]:
    words: list[list[int]] = []
    for place, space in enumerate(spaces):
        if space or not words:
            words.append([])
        words[-1].append(place)
    return [_Word.of(places, is_word) for places in words]


def _target_atoms(sentence: SourceSentence, text: str, single_letters: bool) -> list[TargetAtom]:
    """Those of a text. Of stand-ins that come twice, the first stays, and the other is empty."""
    atoms: list[TargetAtom] = []
    known: set[int] = set()
    for number, word in enumerate(text.split()):
        first, place = len(atoms), 0
        for source, start, end in find_stand_ins(sentence.names, word):
            atoms += _atoms_of(word[place:start], number, single_letters)
            # An empty word is one that links count.
            atoms.append(TargetAtom("", False, False, word=number) if source in known
                         else TargetAtom(word[start:end], True, False, source, word=number))
            known.add(source)
            place = end
        atoms += _atoms_of(word[place:], number, single_letters)
        atoms[first].space = first > 0
    return atoms


def _atoms_of(text: str, number: int, single_letters: bool) -> list[TargetAtom]:
    return [TargetAtom(one, kind == "a", False, word=number) for kind, piece in pieces_of(text)
            for one in (piece if single_letters and is_unspaced(piece) else [piece]) if kind != " "]


def _in_proportion(source: Sequence[int], target: Sequence[int]) -> list[Link]:
    """Links of things by their sizes: each with the one of the other side that is in its middle's place.

    One of the source without a size has none.
    """
    if not source or not target:
        return []
    near = _middles(target, source)
    linked = set(near)
    back = [(one, other) for one, other in enumerate(_middles(source, target))
            if one not in linked and source[one]]
    return sorted([*((one, other) for other, one in enumerate(near)), *back])


def _middles(sizes: Sequence[int], others: Sequence[int]) -> list[int]:
    """For each thing, which of the others is where its middle is, in shares of the whole."""
    ends = list(accumulate(others))
    whole, found, before = sum(sizes), [], 0
    for size in sizes:
        share = (2 * before + size) / (2 * whole) if whole else 0.0
        found.append(min(bisect_right(ends, share * ends[-1]), len(others) - 1))
        before += size
    return found


def _split_copies(sentence: SourceSentence, source: Sequence[_Word], atoms: list[TargetAtom],
                  target: Sequence[_Word], links: Iterable[Link]) -> list[TargetAtom]:
    """The atoms, with words that were copied cut as in the source, where marks are inside them: `H<sub>2</sub>O`."""
    partner: dict[int, list[int]] = defaultdict(list)
    for one, other in links:
        partner[other].append(one)
    found: list[TargetAtom] = []
    for number, word in enumerate(target):
        own = word.own
        text = "".join(atoms[place].text for place in own)
        given = source[partner[number][0]].own if len(partner[number]) == 1 else []
        parts = [sentence.seen[place] for place in given]
        if len(parts) != len(own) and "".join(parts).casefold() == text.casefold() and len("".join(parts)) == len(text):
            cut, start = [], 0
            for place, part in zip(given, parts, strict=True):
                atom = sentence.atoms[place]
                cut.append(TargetAtom(text[start:start + len(part)], atom.is_word, not start and atoms[own[0]].space,
                                      None if atom.shield is None else place, word=number))
                start += len(part)
            found += [*(atoms[place] for place in word.before[::-1]), *cut, *(atoms[place] for place in word.behind)]
        else:
            found += [atoms[place] for place in word.atoms]
    return found


def _link_words(given: Sequence[Atom], atoms: Sequence[TargetAtom], source: Sequence[_Word],
                target: Sequence[_Word], links: Iterable[Link]) -> None:
    """Link the atoms of linked words: their own in their order, the signs before and behind them with such signs."""
    partners: dict[int, list[int]] = defaultdict(list)
    for one, other in sorted(links):
        partners[one].append(other)
    for one, others in partners.items():
        word, found = source[one], [target[other] for other in others]
        own = [place for other in found for place in other.own]
        for place, atom in _of_one_word(word.own, own, given, atoms):
            atoms[atom].sources.append(place)
        for signs, theirs in ((word.before, found[0].before), (word.behind, found[-1].behind)):
            for place, atom in zip(signs, theirs, strict=False):
                atoms[atom].sources.append(place)


def _of_one_word(own: Sequence[int], theirs: Sequence[int], given: Sequence[Atom],
                 atoms: Sequence[TargetAtom]) -> list[Link]:
    if len(own) == 1 or len(own) == len(theirs):
        return [(own[min(number, len(own) - 1)], atom) for number, atom in enumerate(theirs)]
    near = _middles([len(atoms[atom].text) for atom in theirs], [len(given[place].text) for place in own])
    return [(own[number], atom) for number, atom in zip(near, theirs, strict=True)]


def _link_signs(given: Sequence[Atom], atoms: Sequence[TargetAtom]) -> None:
    """Link signs without a link with the same signs of the source, where there are as many; and the last ones."""
    linked = {place for atom in atoms for place in atom.sources}
    theirs: dict[str, list[int]] = defaultdict(list)
    for place, sign in enumerate(given):
        if not sign.is_word and place not in linked:
            theirs[sign.text].append(place)
    free: dict[str, list[TargetAtom]] = defaultdict(list)
    for atom in atoms:
        if not atom.is_word and not atom.sources:
            free[atom.text].append(atom)
    for text, signs in free.items():
        if len(theirs[text]) == len(signs):
            for place, atom in zip(theirs[text], signs, strict=True):
                atom.sources.append(place)
                linked.add(place)
    last = len(given) - 1
    if atoms and not atoms[-1].is_word and not given[last].is_word and not atoms[-1].sources and last not in linked:
        atoms[-1].sources.append(last)
