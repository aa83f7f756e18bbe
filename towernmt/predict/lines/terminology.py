"""Terminologies, and phrases of the target language as the token ids that a translation must contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.text_lines import read_lines
from towernmt.dataflow.text.word_segmentation import begins_unspaced, case_forms, matching_form, without_points, words
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE

_BEGINNING, _END = "<s>", "</s>"


class AnchoredPhrase(NamedTuple):
    """A phrase with its anchors.

    Attributes:
        text: the phrase without anchors.
        at_beginning: whether `<s>` precedes it: the phrase matches only at the beginning of a translation.
        at_end: whether `</s>` follows it: the phrase matches only at the end of a translation.
    """

    text: str
    at_beginning: bool = False
    at_end: bool = False

    @classmethod
    def of(cls, phrase: str) -> AnchoredPhrase:
        """Parse a phrase. `<s>` is an anchor only as the first word, `</s>` only as the last one.

        Raises:
            SettingsError: the phrase consists only of anchors.
        """
        words = clean(phrase).split(" ")
        at_beginning, at_end = words[0] == _BEGINNING, words[-1] == _END
        text = " ".join(words[at_beginning:len(words) - at_end])
        if (at_beginning or at_end) and not text:
            raise SettingsError(f"'{phrase}' is an anchor without a phrase: write words after {_BEGINNING} or before "
                                f"{_END}.")
        return cls(text, at_beginning, at_end)


def phrase_ids(phrase: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of a phrase within a sentence: after a space, unless its script has no spaces.

    Raises:
        SettingsError: the phrase is empty, or the vocabulary cannot write it.
    """
    ids = vocabulary.encode(phrase)
    if vocabulary.kind == "sentencepiece" and begins_unspaced(phrase):
        ids = _without_mark(ids, vocabulary)
    if not ids:
        raise SettingsError("a phrase that a translation must contain is empty: leave it out, or write its words.")
    if vocabulary.unk_id in ids:
        raise SettingsError(f"'{phrase}' contains text that the target vocabulary does not know, so no translation "
                            "can contain it: write it in other characters or words.")
    return ids


def _without_mark(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Return the ids without the mark of a space, for scripts without spaces."""
    first_piece = vocabulary.id_to_piece(ids[0]) if ids else ""
    if not first_piece.startswith(SPACE):
        return ids
    unmarked_piece = first_piece.removeprefix(SPACE)
    pieces = [unmarked_piece] if vocabulary.piece_to_id(unmarked_piece) != vocabulary.unk_id else list(unmarked_piece)
    piece_ids = [vocabulary.piece_to_id(piece) for piece in pieces if piece]
    return ids if vocabulary.unk_id in piece_ids else [*piece_ids, *ids[1:]]


class WritableTerms:
    """A terminology whose target terms a vocabulary can write.

    Attributes:
        terminology: the terms.

    Raises:
        DataError: the vocabulary cannot write a term; the message names its file and line.
    """

    def __init__(self, terminology: Terminology, vocabulary: Vocabulary) -> None:
        self.terminology = terminology
        self._ids: dict[str, list[int]] = {}
        for term in terminology.terms:
            try:
                self._ids[term.target] = phrase_ids(term.target, vocabulary)
            except SettingsError as error:
                raise DataError(f"{term.where}: {error}") from None

    def terms_in(self, line: str) -> list[tuple[Term, list[int]]]:
        """Return the terms that occur in a source line, with the ids of their translations."""
        return [(term, self._ids[term.target]) for term in self.terminology.terms_in(line)]


CASES = ("exact", "any")


class Term(NamedTuple):
    """An entry of a terminology.

    Attributes:
        source, target: the terms.
        any_case: whether to ignore the case of the source term.
        where: location for errors, such as "terms.tsv line 3".
    """

    source: str
    target: str
    any_case: bool = False
    where: str = "a term"


class Terminology:
    """A terminology, which finds its terms in lines. `Terminology.read` reads one from a file.

    Args:
        terms: the entries.

    Raises:
        DataError: a source term has two target terms, or no word.
    """

    def __init__(self, terms: Iterable[Term]) -> None:
        self.terms = list(terms)
        self._by_first_word: dict[str, list[tuple[list[str], Term]]] = {}
        terms_by_words: dict[tuple[str, ...], Term] = {}
        for term in self.terms:
            term_words = words(matching_form(term.source))
            if not term_words:
                raise DataError(f"{term.where}: the source term is empty: write its words.")
            source_words = [case_forms(word)[0] for word in term_words] if term.any_case else term_words
            known_term = terms_by_words.setdefault((str(term.any_case), *source_words), term)
            if known_term.target != term.target:
                raise DataError(f"{term.where}: '{term.source}' is translated as '{term.target}' here and as "
                                f"'{known_term.target}' in {known_term.where}: keep one of them.")
            if known_term is term:
                self._by_first_word.setdefault(_index_form(term_words[0]), []).append((term_words, term))

    @classmethod
    def read(cls, path: str | Path) -> Terminology:
        """Read a terminology from a file.

        Raises:
            DataError: the file is missing or not UTF-8, or a line is not valid; the message names it.
        """
        lines = enumerate(read_lines(path), start=1)
        return cls(_parse(line, f"{path} line {number}") for number, line in lines
                   if line.strip() and not line.startswith("#"))

    def terms_in(self, line: str) -> list[Term]:
        """Return the terms that occur in a line as whole words, in the order of the line, each once.

        Longer terms come first: a term within another match is ignored. If two terms have the same length, the one that
        begins earlier counts; at the same position, a term with `exact` case comes before one with `any`. A term
        without Hebrew points or Arabic vowel signs also matches words with them.
        """
        line_words = words(matching_form(line))
        matches = sorted((-len(term_words), index, term.any_case, number, term)
                         for index, word in enumerate(line_words)
                         for number, (term_words, term) in enumerate(self._by_first_word.get(_index_form(word), ()))
                         if _matches(term_words, line_words[index:index + len(term_words)], term.any_case))
        occupied_indices: set[int] = set()
        positioned_terms: list[tuple[int, Term]] = []
        for length, index, _, _, term in matches:
            span = range(index, index - length)
            if occupied_indices.isdisjoint(span):
                occupied_indices.update(span)
                positioned_terms.append((index, term))
        return list(dict.fromkeys(term for _, term in sorted(positioned_terms)))


def _index_form(word: str) -> str:
    """Return the key of a word: without case, points and dots of Turkish letters."""
    return case_forms(without_points(word))[1].replace("ı", "i")


def _matches(term: Sequence[str], line_words: Sequence[str], any_case: bool) -> bool:
    """Return whether words of a line match those of a term."""
    if len(line_words) != len(term):
        return False
    unpointed_words = [word if term_word != without_points(term_word) else without_points(word)
                       for term_word, word in zip(term, line_words, strict=True)]
    if not any_case:
        return unpointed_words == list(term)
    line_cases, term_cases = (list(zip(*map(case_forms, text_words), strict=True))
                              for text_words in (unpointed_words, term))
    return any(line_forms == term_forms for line_forms, term_forms in zip(line_cases, term_cases, strict=True))


def _parse(line: str, where: str) -> Term:
    fields = [clean(field) for field in line.split("\t")]
    if len(fields) not in (2, 3) or not all(fields[:2]):
        raise DataError(f"{where}: expected a source term, a tab and a target term (optionally a tab and "
                        f"{' or '.join(CASES)}), not '{line[:60]}'.")
    case = fields[2] if len(fields) == 3 and fields[2] else "exact"
    if case not in CASES:
        raise DataError(f"{where}: the rule for upper and lower case is {' or '.join(CASES)}, not '{case}'.")
    return Term(fields[0], fields[1], case == "any", where)
