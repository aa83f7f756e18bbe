"""Segments translated: cut into sentences, translated as plain text, and put together with their marks.

A model sees plain sentences, with stand-ins for words that must stay. Marks go where the links of words say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from towernmt.core.errors import DataError, SettingsError
from towernmt.documents.alignment import Link, TargetAtom, aligned
from towernmt.documents.placement import LONGEST_WORD, placed
from towernmt.documents.segments import Part, Segment
from towernmt.documents.sentences import SourceSentence, SplitSegment, split
from towernmt.documents.shields import find_stand_ins
from towernmt.documents.writing import joined, written


class Translated(Protocol):
    """A translation of a sentence, such as `towernmt.predict.hypotheses.Hypothesis`."""

    @property
    def text(self) -> str:
        """The translation."""
        ...

    def links(self) -> Sequence[Link] | None:
        """The links of its words; None: they are not known."""
        ...


Translate = Callable[[Sequence[str]], Sequence[Translated]]
"""Translates plain sentences."""
Forced = Callable[[Sequence[str], Sequence[Sequence[str]]], Sequence[Translated]]
"""The same, with words that must come in each."""


class SentencesOf:
    """Segments as sentences, to be translated.

    Attributes:
        sentences: of all segments.
    """

    def __init__(self, segments: Iterable[Segment], language: str | None) -> None:
        """
        Args:
            language: of the text, by which sentences are split; None: each segment is one.
        Raises:
            SettingsError: the library that splits is missing.
        """
        self._segments: list[SplitSegment] = [split(segment, language) for segment in segments]
        self.sentences: list[SourceSentence] = [one for segment in self._segments for one in segment.sentences]

    def segments(self, found: Sequence[Translated]) -> list[Segment]:
        """The segments with their translations.

        Args:
            found: of each sentence.
        """
        rest = iter(zip(self.sentences, found, strict=True))
        translated = []
        for segment in self._segments:
            parts: list[Part] = list(segment.between[0])
            for behind, (sentence, translation) in zip(segment.between[1:], rest, strict=False):
                parts += sentence_parts(sentence, translation)
                parts += behind
            translated.append(joined(parts))
        return translated


def translate_segments(segments: Iterable[Segment], translate: Translate, language: str | None,
                       forced: Forced | None = None) -> list[Segment]:
    """Translate segments.

    Args:
        translate: gives the translations of plain sentences.
        language: of the text; see `SentencesOf`.
        forced: translates sentences in which a stand-in was lost once more. Without it, and where it raises
            `SettingsError` or `DataError`, the words that it stands for go where their neighbours are.
    Raises:
        SettingsError: the library that splits sentences is missing.
    """
    split_up = SentencesOf(segments, language)
    found = list(translate([sentence.text for sentence in split_up.sentences]))
    again = [place for place, sentence in enumerate(split_up.sentences) if lost(sentence, found[place].text)]
    if again and forced is not None:
        sentences = [split_up.sentences[place] for place in again]
        second: Sequence[Translated] = ()
        with suppress(SettingsError, DataError):        # a vocabulary that cannot write the stand-ins
            second = forced([sentence.text for sentence in sentences], [list(sentence.names) for sentence in sentences])
        for place, sentence, translation in zip(again, sentences, second, strict=False):
            if len(lost(sentence, translation.text)) < len(lost(sentence, found[place].text)):
                found[place] = translation
    return split_up.segments(found)


def lost(sentence: SourceSentence, text: str) -> list[str]:
    """The stand-ins that are not in a translation."""
    there = {number for number, _, _ in find_stand_ins(sentence.names, text)}
    return [name for name, number in sentence.names.items() if number not in there]


def sentence_parts(sentence: SourceSentence, translation: Translated) -> list[Part]:
    """A translated sentence with its marks and its words that stay."""
    if sentence.is_plain:
        return [translation.text]
    atoms = with_all_shields(sentence, aligned(sentence, translation.text, translation.links()))
    return written(sentence, atoms, placed(sentence, atoms))


def with_all_shields(sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> list[TargetAtom]:
    """The atoms of a translation, and those that must stay but are not there: each beside what it was beside."""
    there = {atom.stands_for for atom in atoms}
    missing = [source for source in sentence.names.values() if source not in there]
    if not missing:
        return list(atoms)
    inserted: dict[int, list[int]] = defaultdict(list)
    linked = {source: place for place, atom in enumerate(atoms) for source in atom.sources}
    place = 0
    for source in missing:
        if source - 1 in linked:
            place = _word_end(atoms, linked[source - 1] + 1)
        elif source + 1 in linked:
            place = _word_end(atoms, linked[source + 1])
        elif source - 1 not in there and source - 1 not in missing:
            place = _word_end(atoms, source * len(atoms) // len(sentence.atoms))
        inserted[place].append(source)
    found: list[TargetAtom] = []
    for place in range(len(atoms) + 1):
        for source in inserted.get(place, ()):
            found.append(TargetAtom(sentence.atoms[source].text, True, bool(found), source, [source]))
        if place < len(atoms):
            atom = atoms[place]
            joins = place in inserted and atom.is_word or not place and bool(found)
            found.append(replace(atom, space=True) if joins else atom)
    return found


def _word_end(atoms: Sequence[TargetAtom], place: int) -> int:
    """The next place at which something can stand without parting a word; signs behind a word may follow it."""
    end = place
    while 0 < end < len(atoms) and not atoms[end].space and end < place + LONGEST_WORD:
        if atoms[end].is_word:
            place = end + 1
        end += 1
    return place
