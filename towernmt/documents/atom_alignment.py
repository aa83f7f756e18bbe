"""Align the atoms of a translation with those of the source, from the alignment of words."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from towernmt.dataflow.text.word_segmentation import characters, is_unspaced
from towernmt.documents.segments import Atom, runs_by_kind
from towernmt.documents.shields import find_placeholders
from towernmt.documents.source_sentences import SourceSentence

Link = tuple[int, int]


@dataclass
class TargetAtom:
    """An atom of a translation.

    Attributes:
        text: the text that the model generated.
        is_word: whether the text is letters or digits, not a sign.
        space: whether a space precedes the atom.
        stands_for: index of the shielded source atom whose placeholder this is; None for ordinary text.
        sources: indices of the source atoms that the atom is aligned with, in order.
        word: index of the atom's word in the translation; None if the model did not generate it.
    """

    text: str
    is_word: bool
    space: bool
    stands_for: int | None = None
    sources: list[int] = field(default_factory=list)
    word: int | None = None


@dataclass
class _Word:
    """The atoms between two spaces.

    Attributes:
        atoms: indices of the atoms.
        core: start and end of the atoms without the signs before and after them.
    """

    atoms: list[int]
    core: tuple[int, int]

    @classmethod
    def of(cls, indices: list[int], is_word: Sequence[bool]) -> _Word:
        inner = [number for number, index in enumerate(indices) if is_word[index]]
        return cls(indices, (inner[0], inner[-1] + 1) if inner else (0, len(indices)))

    @property
    def inner(self) -> list[int]:
        return self.atoms[self.core[0]:self.core[1]]

    @property
    def before(self) -> list[int]:
        return self.atoms[:self.core[0]][::-1]

    @property
    def after(self) -> list[int]:
        return self.atoms[self.core[1]:]


def align_atoms(sentence: SourceSentence, text: str, links: Iterable[Link] | None) -> list[TargetAtom]:
    """Return the atoms of a translation, aligned with those of the source.

    Args:
        sentence: the source.
        text: the translation.
        links: word alignment as pairs (source word, target word). Without it, and in scripts without spaces between
            words, atoms are aligned by their relative position in the sentence.
    """
    unspaced = sentence.is_unspaced or is_unspaced(text)
    source = _words([atom.is_word for atom in sentence.atoms], sentence.spaces)
    atoms = _target_atoms(sentence, text, unspaced)
    present = {atom.stands_for for atom in atoms}
    sizes = [0 if atom.shield is not None and index not in present else len(atom.text)
             for index, atom in enumerate(sentence.atoms)]      # a missing placeholder is not aligned
    if unspaced:
        for index, near in _in_proportion(sizes, [len(atom.text) for atom in atoms]):
            atoms[near].sources.append(index)
    else:
        target = _words([atom.is_word for atom in atoms], [atom.space for atom in atoms])
        found = [(one, other) for one, other in links or () if one < len(source) and other < len(target)]
        if not found:
            found = _in_proportion([sum(sizes[index] for index in word.atoms) for word in source],
                                   [sum(len(atoms[index].text) for index in word.atoms) for word in target])
        atoms = _split_copies(sentence, source, atoms, target, found)
        target = _words([atom.is_word for atom in atoms], [atom.space for atom in atoms])
        _link_words(sentence.atoms, atoms, source, target, found)
        _link_signs(sentence.atoms, atoms)
    copied = {atom.stands_for for atom in atoms if atom.stands_for is not None}
    for atom in atoms:
        atom.sources = ([atom.stands_for] if atom.stands_for is not None
                        else sorted(index for index in set(atom.sources) if index not in copied))
    return _without_empty_ones(atoms)


def _without_empty_ones(atoms: list[TargetAtom]) -> list[TargetAtom]:
    for index, atom in enumerate(atoms[:-1]):
        if not atom.text:
            atoms[index + 1].space |= atom.space
    nonempty = [atom for atom in atoms if atom.text]
    if nonempty:
        nonempty[0].space = False
    return nonempty


def _words(is_word: Sequence[bool], spaces: Sequence[bool]) -> list[_Word]:
    words: list[list[int]] = []
    for index, space in enumerate(spaces):
        if space or not words:
            words.append([])
        words[-1].append(index)
    return [_Word.of(indices, is_word) for indices in words]


def _target_atoms(sentence: SourceSentence, text: str, single_letters: bool) -> list[TargetAtom]:
    """Return the atoms of a translation. If a placeholder occurs twice, the second one becomes empty."""
    atoms: list[TargetAtom] = []
    known: set[int] = set()
    for number, word in enumerate(text.split()):
        first, index = len(atoms), 0
        for source, start, end in find_placeholders(sentence.names, word):
            atoms += _atoms_of(word[index:start], number, single_letters)
            # Links number all words of the translation, so an empty word must remain.
            atoms.append(TargetAtom("", False, False, word=number) if source in known
                         else TargetAtom(word[start:end], True, False, source, word=number))
            known.add(source)
            index = end
        atoms += _atoms_of(word[index:], number, single_letters)
        atoms[first].space = first > 0
    return atoms


def _atoms_of(text: str, number: int, single_letters: bool) -> list[TargetAtom]:
    return [TargetAtom(one, kind == "a", False, word=number) for kind, piece in runs_by_kind(text)
            for one in (characters(piece) if single_letters and is_unspaced(piece) else [piece]) if kind != " "]


def _in_proportion(source: Sequence[int], target: Sequence[int]) -> list[Link]:
    """Align items by position: each with the item of the other side at the same relative position.

    Args:
        source: sizes of the source items; an item of size 0 is not aligned.
        target: sizes of the target items.
    """
    if not source or not target:
        return []
    near = _middles(target, source)
    linked = set(near)
    back = [(one, other) for one, other in enumerate(_middles(source, target))
            if one not in linked and source[one]]
    return sorted([*((one, other) for other, one in enumerate(near)), *back])


def _middles(sizes: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return, for each item, the index of the other item at the relative position of its middle."""
    ends = list(accumulate(others))
    total, found, before = sum(sizes), [], 0
    for size in sizes:
        share = (2 * before + size) / (2 * total) if total else 0.0
        found.append(min(bisect_right(ends, share * ends[-1]), len(others) - 1))
        before += size
    return found


def _split_copies(sentence: SourceSentence, source: Sequence[_Word], atoms: list[TargetAtom],
                  target: Sequence[_Word], links: Iterable[Link]) -> list[TargetAtom]:
    """Return the atoms, with copied words divided as in the source if these have marks inside: `H<sub>2</sub>O`."""
    partner: dict[int, list[int]] = defaultdict(list)
    for one, other in links:
        partner[other].append(one)
    found: list[TargetAtom] = []
    for number, word in enumerate(target):
        inner = word.inner
        text = "".join(atoms[index].text for index in inner)
        originals = source[partner[number][0]].inner if len(partner[number]) == 1 else []
        parts = [sentence.seen[index] for index in originals]
        copied = "".join(parts)
        if len(parts) != len(inner) and copied.casefold() == text.casefold() and len(copied) == len(text):
            cut, start = [], 0
            for index, part in zip(originals, parts, strict=True):
                atom = sentence.atoms[index]
                cut.append(TargetAtom(text[start:start + len(part)], atom.is_word, not start and atoms[inner[0]].space,
                                      None if atom.shield is None else index, word=number))
                start += len(part)
            found += [*(atoms[index] for index in word.before[::-1]), *cut, *(atoms[index] for index in word.after)]
        else:
            found += [atoms[index] for index in word.atoms]
    return found


def _link_words(originals: Sequence[Atom], atoms: Sequence[TargetAtom], source: Sequence[_Word],
                target: Sequence[_Word], links: Iterable[Link]) -> None:
    """Align the atoms of aligned words in order, and the signs before and after the words with each other."""
    partners: dict[int, list[int]] = defaultdict(list)
    for one, other in sorted(links):
        partners[one].append(other)
    for one, others in partners.items():
        word, found = source[one], [target[other] for other in others]
        inner = [index for other in found for index in other.inner]
        for index, atom in _of_one_word(word.inner, inner, originals, atoms):
            atoms[atom].sources.append(index)
        for signs, theirs in ((word.before, found[0].before), (word.after, found[-1].after)):
            for index, atom in zip(signs, theirs, strict=False):
                atoms[atom].sources.append(index)


def _of_one_word(inner: Sequence[int], theirs: Sequence[int], originals: Sequence[Atom],
                 atoms: Sequence[TargetAtom]) -> list[Link]:
    if len(inner) == 1 or len(inner) == len(theirs):
        return [(inner[min(number, len(inner) - 1)], atom) for number, atom in enumerate(theirs)]
    near = _middles([len(atoms[atom].text) for atom in theirs], [len(originals[index].text) for index in inner])
    return [(inner[number], atom) for number, atom in zip(near, theirs, strict=True)]


def _link_signs(originals: Sequence[Atom], atoms: Sequence[TargetAtom]) -> None:
    """Align equal signs if source and translation have the same number of them, and the last sign of each side."""
    linked = {index for atom in atoms for index in atom.sources}
    theirs: dict[str, list[int]] = defaultdict(list)
    for index, sign in enumerate(originals):
        if not sign.is_word and index not in linked:
            theirs[sign.text].append(index)
    free: dict[str, list[TargetAtom]] = defaultdict(list)
    for atom in atoms:
        if not atom.is_word and not atom.sources:
            free[atom.text].append(atom)
    for text, signs in free.items():
        if len(theirs[text]) == len(signs):
            for index, atom in zip(theirs[text], signs, strict=True):
                atom.sources.append(index)
                linked.add(index)
    last = len(originals) - 1
    if atoms and not atoms[-1].is_word and not originals[last].is_word and not atoms[-1].sources and last not in linked:
        atoms[-1].sources.append(last)
