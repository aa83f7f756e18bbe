"""Translate segments: divide them into sentences, translate these as plain text, and insert the marks again.

The model sees plain sentences, with placeholders for protected words. The word alignment of a translation determines
where marks and symbols go; protected words replace their placeholders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Protocol, TypeVar

from towernmt.documents.atom_alignment import Link, TargetAtom, align_atoms
from towernmt.documents.lost_placeholders import with_numbers_of_placeholders
from towernmt.documents.mark_placement import MAX_WORD_LENGTH, place_marks
from towernmt.documents.segments import Part, Segment
from towernmt.documents.shields import EVERYTHING, Protection
from towernmt.documents.source_sentences import SourceSentence, SplitSegment, split_segment
from towernmt.documents.writing import to_segment, without_empty_pairs, written_parts


class Translated(Protocol):
    """A translation of a sentence, such as `towernmt.predict.lines.hypotheses.Hypothesis`."""

    @property
    def text(self) -> str:
        """The translated text."""
        ...

    def links(self) -> Sequence[Link] | None:
        """Return the word alignment; None if it is unknown."""
        ...


Translate = Callable[[Sequence[str]], Sequence[Translated]]
"""A function that translates plain sentences."""
Forced = Callable[[Sequence[str], Sequence[Sequence[str]]], Sequence[Translated | None]]
"""A function that translates plain sentences with words that each translation must contain. It returns None for a
sentence whose words the vocabulary cannot write."""
T = TypeVar("T")


class SplitSegments:
    """Segments, divided into sentences.

    Args:
        segments: the segments.
        language: language of the text; None to treat each segment as one sentence.
        protection: the words and symbols to protect.

    Attributes:
        sentences: the sentences of all segments.

    Raises:
        SettingsError: the library that splits sentences is not installed.
    """

    def __init__(self, segments: Iterable[Segment], language: str | None, protection: Protection = EVERYTHING) -> None:
        self._segments: list[SplitSegment] = [split_segment(segment, language, protection) for segment in segments]
        self.sentences = [sentence for segment in self._segments for sentence in segment.sentences]

    @property
    def is_plain(self) -> bool:
        """Whether no sentence has marks or protected words, so that word alignments are not needed."""
        return all(sentence.is_plain for sentence in self.sentences)

    def translated(self, translate: Translate, forced: Forced | None = None) -> list[Segment]:
        """Return the translated segments, with their marks and protected words.

        Args:
            translate: translates plain sentences.
            forced: translates sentences again if a placeholder is missing from their translations. Without it, or if it
                returns None for a sentence, the protected words are inserted next to their neighbours.
        """
        sentences = self.sentences
        translations = translate([sentence.text for sentence in sentences])
        if forced is not None:
            def translate_again(indices: list[int]) -> Sequence[Translated | None]:
                return forced([sentences[index].text for index in indices],
                              [list(sentences[index].names) for index in indices])

            translations = with_placeholders_forced(
                sentences, translations, lambda translation: translation.text, translate_again)
        return self.segments(translations)

    def segments(self, translations: Sequence[Translated], numbers: Set[str] = frozenset()) -> list[Segment]:
        """Return the translated segments.

        Args:
            translations: the translation of each sentence.
            numbers: as in `with_numbers_of_placeholders`.
        """
        remaining = iter(zip(self.sentences, translations, strict=True))
        translated = []
        for segment in self._segments:
            parts: list[Part] = list(segment.between[0])
            for after, (sentence, translation) in zip(segment.between[1:], remaining, strict=False):
                parts += sentence_parts(sentence, translation, numbers)
                parts += after
            translated.append(to_segment(without_empty_pairs(segment.source, parts)))
        return translated


def with_placeholders_forced(sentences: Sequence[SourceSentence], translations: Sequence[T],
                             text_of: Callable[[T], str], forced: Callable[[list[int]], Iterable[T | None]]
                             ) -> list[T]:
    """Translate sentences with missing placeholders again, and return the better translation of each sentence.

    Args:
        sentences: sentences with placeholders.
        translations: the translation of each sentence.
        text_of: returns the text of a translation.
        forced: translates the sentences of these indices with their placeholders as lexical constraints. A sentence for
            which it returns None keeps its first translation.
    """
    better = list(translations)
    missing = [missing_placeholders(sentence, text_of(translation))
               for sentence, translation in zip(sentences, translations, strict=True)]
    indices = [index for index, names in enumerate(missing) if names]
    for index, translation in zip(indices, forced(indices) if indices else (), strict=True):
        if translation is not None and (
                len(missing_placeholders(sentences[index], text_of(translation))) < len(missing[index])):
            better[index] = translation
    return better


def missing_placeholders(sentence: SourceSentence, text: str) -> list[str]:
    """Return the placeholders that are missing from a translation."""
    if not sentence.names:
        return []
    found = {number for number, _, _ in sentence.placeholders_in(text)}
    return [name for name, number in sentence.names.items() if number not in found]


def sentence_parts(sentence: SourceSentence, translation: Translated, numbers: Set[str]) -> list[Part]:
    """Return the parts of a translated sentence, with its marks and protected words."""
    if sentence.is_plain:
        return [translation.text]
    aligned = align_atoms(sentence, translation.text, translation.links())
    atoms = with_all_shields(sentence, with_numbers_of_placeholders(sentence, aligned, numbers))
    return written_parts(sentence, atoms, place_marks(sentence, atoms))


def with_all_shields(sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> list[TargetAtom]:
    """Return the atoms of a translation, with missing shielded words inserted next to their neighbours."""
    present = {atom.stands_for for atom in atoms}
    missing = [source for source in sentence.names.values() if source not in present]
    if not missing:
        return list(atoms)
    inserted: dict[int, list[int]] = defaultdict(list)
    linked = {source: index for index, atom in enumerate(atoms) for source in atom.sources}
    index = 0
    for source in missing:
        if source - 1 in linked:
            index = _word_end(atoms, linked[source - 1] + 1)
        elif source + 1 in linked:
            index = _word_end(atoms, linked[source + 1])
        elif source - 1 not in present and source - 1 not in missing:
            index = _word_end(atoms, source * len(atoms) // len(sentence.atoms))
        inserted[index].append(source)
    result: list[TargetAtom] = []
    for index in range(len(atoms) + 1):
        for source in inserted.get(index, ()):
            result.append(TargetAtom(sentence.atoms[source].text, True, bool(result), source, [source]))
        if index < len(atoms):
            atom = atoms[index]
            joins = index in inserted and atom.is_word or not index and bool(result)
            result.append(replace(atom, space=True) if joins else atom)
    return result


def _word_end(atoms: Sequence[TargetAtom], index: int) -> int:
    """Return the next index at which an insertion does not divide a word; signs after the word may follow it."""
    end = index
    while 0 < end < len(atoms) and not atoms[end].space and end < index + MAX_WORD_LENGTH:
        if atoms[end].is_word:
            index = end + 1
        end += 1
    return index
