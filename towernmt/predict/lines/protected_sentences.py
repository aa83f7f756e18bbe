"""Sentences with placeholders for protected words: their options, and their translations with the protected words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from towernmt.documents.atom_alignment import TargetAtom, align_atoms
from towernmt.documents.lost_placeholders import with_numbers_of_placeholders
from towernmt.documents.mark_placement import place_marks
from towernmt.documents.segments import Mark, Part, Segment
from towernmt.documents.shields import NOTHING, Attached
from towernmt.documents.source_sentences import SourceSentence, split_segment
from towernmt.documents.translation import with_all_shields
from towernmt.documents.writing import written_atoms
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.required_texts import RequiredTexts
from towernmt.predict.lines.words_of_lines import NO_WORD


def with_placeholders(options: LineOptions, sentence: SourceSentence) -> LineOptions:
    """Return the options of a sentence with its protected words replaced by placeholders."""
    if not (options.prefix or options.constraints or options.avoid) or not (sentence.names or sentence.symbols):
        return options
    return replace(options, prefix=_phrase_with_placeholders(options.prefix, sentence),
                   constraints=[_phrase_with_placeholders(phrase, sentence) for phrase in options.constraints],
                   avoid=[_phrase_with_placeholders(phrase, sentence) for phrase in options.avoid])


def with_names_forced(options: LineOptions, sentence: SourceSentence) -> LineOptions:
    """Return the options of a sentence with its placeholders as lexical constraints."""
    return replace(options, constraints=(*options.constraints, *sentence.names))


def _phrase_with_placeholders(phrase: str, sentence: SourceSentence) -> str:
    """Return a phrase with the placeholder of each protected word, once, and without the symbols of the sentence."""
    words = {name: sentence.atoms[index].text for name, index in sentence.names.items()}
    remaining_names: dict[str, list[str]] = {}
    for name, word in (*words.items(), *(("", symbol) for symbol in sentence.symbols)):
        remaining_names.setdefault(word, []).append(name)
    pattern = "|".join(map(_pattern_of_word, sorted(remaining_names, key=len, reverse=True)))

    def next_name(match: re.Match[str]) -> str:
        names = remaining_names[match[0]]
        return names.pop(0) if names else match[0]

    phrase = re.sub(pattern, next_name, phrase)
    return " ".join(phrase.split()) if sentence.symbols else phrase


def _pattern_of_word(word: str) -> str:
    """Return a regular expression of a protected word; a number is not found within a longer one."""
    begin, end = r"(?<!\d)" if word[:1].isdigit() else "", r"(?!\d)" if word[-1:].isdigit() else ""
    return begin + re.escape(word) + end


def restored(sentence: SourceSentence, translation: Translation, options: LineOptions) -> Translation:
    """Return the translations of a sentence, with shielded words instead of placeholders, and with symbols.

    Args:
        sentence: the sentence.
        translation: its translations.
        options: options of the translations.
    """
    if not sentence.names and not sentence.symbols:
        return translation
    numbers = required_numbers(options)
    return translation.changed(lambda hypothesis: _hypothesis(sentence, hypothesis, numbers))


def required_numbers(options: LineOptions) -> set[str]:
    """Return the numbers in the prefix and in the constraints of a sentence, which stand for no placeholder."""
    return set(re.findall(r"\d+", " ".join((options.prefix, *options.constraints))))


def _hypothesis(sentence: SourceSentence, hypothesis: Hypothesis, numbers: set[str]) -> Hypothesis:
    words: list[list[TargetAtom]] = []
    aligned = align_atoms(sentence, hypothesis.text, hypothesis.links())
    aligned = with_numbers_of_placeholders(sentence, aligned, numbers)
    for atom in _with_symbols(sentence, with_all_shields(sentence, aligned)):
        if atom.space or not words:
            words.append([])
        words[-1].append(atom)
    texts = ["".join(atom.text if atom.stands_for is None else sentence.atoms[atom.stands_for].text for atom in word)
             for word in words]
    details = None if hypothesis.details is None else _details(sentence, hypothesis.details, words, texts)
    return hypothesis.replaced(text=" ".join(texts), details=details)


def _with_symbols(sentence: SourceSentence, atoms: list[TargetAtom]) -> list[TargetAtom]:
    """Return the atoms, with an atom for each symbol."""
    if not sentence.symbols:
        return atoms
    new_atoms: list[TargetAtom] = []
    remaining_atoms = iter(atoms)
    space = False
    for is_atom, part in written_atoms(sentence, atoms, place_marks(sentence, atoms)):
        if is_atom:
            atom = next(remaining_atoms)
            new_atoms.append(replace(atom, space=bool(new_atoms) and space))
            space = False
        elif isinstance(part, Attached):
            new_atoms.append(TargetAtom(part.text, False, bool(new_atoms) and space))
            space = False
        else:
            space = space or isinstance(part, str)
    return new_atoms


def _details(sentence: SourceSentence, details: TokenDetails, words: list[list[TargetAtom]],
             texts: list[str]) -> TokenDetails:
    """Return the token details of a translation for its new words, several for a protected text with spaces."""
    rows, columns = _first_words(texts), _first_words(sentence.words)
    new_words: dict[int, int] = {}
    for number, word in enumerate(words):
        for atom in word:
            if atom.word is not None:
                new_words.setdefault(atom.word, rows[number])
    of_tokens = details.words and [new_words.get(word, NO_WORD) for word in details.words]
    if details.alignment is None or len(details.alignment.source) != len(sentence.words):
        return details._replace(words=of_tokens, alignment=None)
    of_source = details.source_words and [word if word == NO_WORD else columns[word] for word in details.source_words]
    weights = np.zeros([rows[-1], columns[-1]], np.float32)
    for number, word in enumerate(words):
        block = weights[rows[number]:rows[number + 1]]
        aligned_atom = next((atom for atom in word if atom.word is not None or atom.stands_for is not None), None)
        if aligned_atom is not None and aligned_atom.word is not None:
            block[:] = np.repeat(details.alignment.weights[aligned_atom.word], np.diff(columns))
        copied = next((atom.stands_for for atom in word if atom.stands_for is not None), None)
        if copied is not None:
            source_word = sum(sentence.spaces[:copied + 1])
            block = block[:, columns[source_word]:columns[source_word + 1]]
            if aligned_atom is not None and aligned_atom.word is None:
                block[:] = 1.0
            if len(block) == block.shape[1]:
                block *= np.eye(len(block), dtype=np.float32)
    return details._replace(words=of_tokens, source_words=of_source,
                            alignment=WordAlignment(_divided(sentence.words), _divided(texts), weights))


def _divided(texts: list[str]) -> list[str]:
    return " ".join(texts).split()


def _first_words(texts: list[str]) -> list[int]:
    """Return the index of the first word of each text among the words of all, and the number of words."""
    return [0, *accumulate(len(text.split()) for text in texts)]


class ProtectedLine:
    """A line with placeholders for its protected words, and without its symbols.

    Args:
        line: the line.
        segment: the line as text, protected words, and symbols as marks.
        known_words: names and numbers that the model copies, for placeholders.

    Attributes:
        sentence: the sentence that the model translates; None if the line has no other words.
    """

    def __init__(self, line: str, segment: Segment, known_words: Sequence[str] = ()) -> None:
        self._line = line
        split = split_segment(segment, None, NOTHING, known_words)
        self.sentence = split.sentences[0] if split.sentences else None
        # Symbols at the edges are not part of the sentence.
        self._text_before, self._text_after = ("".join(map(_text_of, parts))
                                               for parts in (split.between[0], split.between[-1]))

    def restored(self, translation: Translation, options: LineOptions, required: RequiredTexts) -> Translation:
        """Return the translations of the sentence as those of the line.

        Args:
            translation: translations of the sentence.
            options: options of the line.
            required: texts that they contain. Those at the beginning stay there.
        """
        if self.sentence is None:
            return translation
        return restored(self.sentence, translation, options).changed(
            lambda hypothesis: self._of_line(hypothesis, required.end_of_beginning(hypothesis.text)))

    def _of_line(self, hypothesis: Hypothesis, start: int) -> Hypothesis:
        """Return the hypothesis with the symbols at the edges of the line, those before the sentence after `start`."""
        text_before, separator = self._text_before, " " if start and self._text_before else ""
        begin, rest = hypothesis.text[:start] + separator, hypothesis.text[start:].removeprefix(separator)
        text = f"{begin}{text_before}{rest}{self._text_after}".strip()
        details = hypothesis.details
        if details is not None:
            num_words_before = len(text_before.split()) - bool(text_before and not text_before[-1].isspace())
            details = self._details_of_line(details, text.split(), num_words_before, len(begin.split()))
        return hypothesis.replaced(text=text, details=details)

    def _details_of_line(self, details: TokenDetails, words: list[str], num_words_before: int, first_word: int
                         ) -> TokenDetails:
        """Return details by the words of the line and of its translation.

        Args:
            details: details by the words of the sentence.
            words: words of the translation.
            num_words_before: number of words before those of the sentence.
            first_word: index of the first of these words in the translation.
        """
        def in_line(word: int) -> int:
            return num_words_before + word if word >= first_word else word

        of_tokens = details.words and [word if word == NO_WORD else in_line(word) for word in details.words]
        source, alignment = self._line.split(), details.alignment
        if alignment is None or len(alignment.source) != len(self._words):
            return details._replace(words=of_tokens, source_words=None, alignment=None)
        of_source = details.source_words and [word if word == NO_WORD else self._words[word]
                                              for word in details.source_words]
        weights = np.zeros([len(words), len(source)], np.float32)
        num_words_after = len(self._text_after.split()) - bool(self._text_after and not self._text_after[0].isspace())
        for index in range(num_words_before):
            weights[first_word + index, index] = 1.0
        for index in range(-num_words_after, 0):
            weights[index, index] = 1.0
        for index, row in enumerate(alignment.weights):
            weights[in_line(index), self._words] = row
        return details._replace(words=of_tokens, source_words=of_source,
                                alignment=WordAlignment(source, words, weights))

    @cached_property
    def _words(self) -> list[int]:
        """Return the index in the line of each word of the sentence; empty if the words do not correspond."""
        symbols = [*(self.sentence.symbols if self.sentence else ()), *self._text_before.split(),
                   *self._text_after.split()]
        indices = []
        for index, word in enumerate(self._line.split()):
            for symbol in symbols:
                word = word.replace(symbol, "")
            indices += [index] if word else []
        return indices if self.sentence is not None and len(indices) == len(_divided(self.sentence.words)) else []


def _text_of(part: Part) -> str:
    if isinstance(part, Mark):
        return part.text if isinstance(part, Attached) else ""
    return part if isinstance(part, str) else part.text
