"""Align the atoms of a translation with those of the source, from the alignment of words."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from towernmt.dataflow.text.word_segmentation import characters, is_unspaced
from towernmt.documents.segments import Atom, runs_by_kind
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
        for index, target_index in _links_by_position(sizes, [len(atom.text) for atom in atoms]):
            atoms[target_index].sources.append(index)
    else:
        target = _words([atom.is_word for atom in atoms], [atom.space for atom in atoms])
        indices = sentence.word_indices
        word_links = [(indices[source_word], target_word) for source_word, target_word in links or ()
                      if source_word < len(indices) and target_word < len(target)]
        if not word_links:
            word_links = _links_by_position([sum(sizes[index] for index in word.atoms) for word in source],
                                            [sum(len(atoms[index].text) for index in word.atoms) for word in target])
        atoms = _split_copies(sentence, source, atoms, target, word_links)
        target = _words([atom.is_word for atom in atoms], [atom.space for atom in atoms])
        _link_words(sentence.atoms, atoms, source, target, word_links)
        _link_signs(sentence.atoms, atoms)
    copied = {atom.stands_for for atom in atoms if atom.stands_for is not None}
    for atom in atoms:
        atom.sources = ([atom.stands_for] if atom.stands_for is not None
                        else sorted(index for index in set(atom.sources) if index not in copied))
    return _without_empty_atoms(atoms)


def _without_empty_atoms(atoms: list[TargetAtom]) -> list[TargetAtom]:
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
    used: set[int] = set()
    for word_index, word in enumerate(text.split()):
        first_atom, offset = len(atoms), 0
        for source, start, end in sentence.placeholders_in(word):
            atoms += _atoms_of(word[offset:start], word_index, single_letters)
            # Links number all words of the translation, so an empty word must remain.
            atoms.append(TargetAtom("", False, False, word=word_index) if source in used
                         else TargetAtom(word[start:end], True, False, source, word=word_index))
            used.add(source)
            offset = end
        atoms += _atoms_of(word[offset:], word_index, single_letters)
        atoms[first_atom].space = first_atom > 0
    return atoms


def _atoms_of(text: str, word_index: int, single_letters: bool) -> list[TargetAtom]:
    return [TargetAtom(run_text, kind == "a", False, word=word_index) for kind, run in runs_by_kind(text)
            for run_text in (characters(run) if single_letters and is_unspaced(run) else [run]) if kind != " "]


def _links_by_position(source: Sequence[int], target: Sequence[int]) -> list[Link]:
    """Align items by position: each with the item of the other side at the same relative position.

    Args:
        source: sizes of the source items; an item of size 0 is not aligned.
        target: sizes of the target items.
    """
    if not source or not target:
        return []
    source_of_target = _indices_at_middles(target, source)
    target_of_source = _indices_at_middles(source, target)
    links = [(source_index, target_index) for target_index, source_index in enumerate(source_of_target)]
    linked = set(source_of_target)
    links += [(source_index, target_index) for source_index, target_index in enumerate(target_of_source)
              if source_index not in linked and source[source_index]]
    return sorted(links)


def _indices_at_middles(sizes: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return, for each item, the index of the other item at the relative position of its middle."""
    ends = list(accumulate(others))
    total, indices, size_before = sum(sizes), [], 0
    for size in sizes:
        middle = (2 * size_before + size) / (2 * total) if total else 0.0
        indices.append(min(bisect_right(ends, middle * ends[-1]), len(others) - 1))
        size_before += size
    return indices


def _split_copies(sentence: SourceSentence, source: Sequence[_Word], atoms: list[TargetAtom],
                  target: Sequence[_Word], links: Iterable[Link]) -> list[TargetAtom]:
    """Return the atoms, with copied words divided as in the source if these have marks inside: `H<sub>2</sub>O`."""
    source_words: dict[int, list[int]] = defaultdict(list)
    for source_word, target_word in links:
        source_words[target_word].append(source_word)
    result: list[TargetAtom] = []
    for word_index, word in enumerate(target):
        inner = word.inner
        text = "".join(atoms[index].text for index in inner)
        originals = source[source_words[word_index][0]].inner if len(source_words[word_index]) == 1 else []
        texts = [sentence.seen[index] for index in originals]
        copied = "".join(texts)
        if len(texts) != len(inner) and text and copied.casefold() == text.casefold() and len(copied) == len(text):
            split_atoms, start = [], 0
            for index, text_of_atom in zip(originals, texts, strict=True):
                atom = sentence.atoms[index]
                split_atoms.append(TargetAtom(
                    text[start:start + len(text_of_atom)], atom.is_word, not start and atoms[inner[0]].space,
                    None if atom.shield is None else index, word=word_index))
                start += len(text_of_atom)
            result += [atoms[index] for index in word.before[::-1]]
            result += [*split_atoms, *(atoms[index] for index in word.after)]
        else:
            result += [atoms[index] for index in word.atoms]
    return result


def _link_words(originals: Sequence[Atom], atoms: Sequence[TargetAtom], source: Sequence[_Word],
                target: Sequence[_Word], links: Iterable[Link]) -> None:
    """Align the atoms of aligned words in order, and the signs before and after the words with each other."""
    targets_of_source: dict[int, list[int]] = defaultdict(list)
    for source_word, target_word in sorted(links):
        targets_of_source[source_word].append(target_word)
    for source_word, target_words in targets_of_source.items():
        word, aligned_words = source[source_word], [target[target_word] for target_word in target_words]
        inner = [index for target_word in aligned_words for index in target_word.inner]
        for index, target_index in _links_within_word(word.inner, inner, originals, atoms):
            atoms[target_index].sources.append(index)
        for signs, target_signs in ((word.before, aligned_words[0].before), (word.after, aligned_words[-1].after)):
            for index, target_index in zip(signs, target_signs, strict=False):
                atoms[target_index].sources.append(index)


def _links_within_word(source_indices: Sequence[int], target_indices: Sequence[int], originals: Sequence[Atom],
                       atoms: Sequence[TargetAtom]) -> list[Link]:
    """Align the atoms of a word with those of a translated word: in order if possible, otherwise by position."""
    if len(source_indices) == 1:
        positions = [0] * len(target_indices)
    elif len(source_indices) == len(target_indices):
        positions = list(range(len(target_indices)))
    else:
        positions = _indices_at_middles([len(atoms[index].text) for index in target_indices],
                                        [len(originals[index].text) for index in source_indices])
    return [(source_indices[position], target) for position, target in zip(positions, target_indices, strict=True)]


def _link_signs(originals: Sequence[Atom], atoms: Sequence[TargetAtom]) -> None:
    """Align equal signs if source and translation have the same number of them, and the last sign of each side."""
    linked = {index for atom in atoms for index in atom.sources}
    unaligned_source: dict[str, list[int]] = defaultdict(list)
    for index, sign in enumerate(originals):
        if not sign.is_word and index not in linked:
            unaligned_source[sign.text].append(index)
    unaligned_target: dict[str, list[TargetAtom]] = defaultdict(list)
    for atom in atoms:
        if not atom.is_word and not atom.sources:
            unaligned_target[atom.text].append(atom)
    for text, signs in unaligned_target.items():
        if len(unaligned_source[text]) == len(signs):
            for index, atom in zip(unaligned_source[text], signs, strict=True):
                atom.sources.append(index)
                linked.add(index)
    last = len(originals) - 1
    if atoms and not atoms[-1].is_word and not originals[last].is_word and not atoms[-1].sources and last not in linked:
        atoms[-1].sources.append(last)
