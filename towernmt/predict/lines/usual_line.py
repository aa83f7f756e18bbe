"""A line in the form that is usual in the training text: its case, its spelling and its marks, with protected spans."""

from __future__ import annotations

import re
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.letter_case import is_upper_case
from towernmt.dataflow.text.modifiers import without_accents
from towernmt.dataflow.text.word_segmentation import is_unspaced
from towernmt.dataflow.vocabulary.source_text import has_final_mark
from towernmt.documents.segments import Mark, Segment, plain_text
from towernmt.documents.shields import WORD, Protection
from towernmt.predict.lines.capitals import (
    UsualForms,
    is_in_capitals,
    is_in_lower_case,
    is_in_title_case,
    usual_case,
)
from towernmt.predict.lines.known_words import KnownWords
from towernmt.predict.lines.line_options import LineRequest
from towernmt.predict.lines.line_spans import LineSpans
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.spelling import TypoCorrector, with_spaces
from towernmt.predict.search.search_settings import SpecialLineSettings

_NAME = re.compile(r"(?<![\w-])(?:(?<!\d )(?![IVXLCDM]+\b)[A-Z]{2,6}(?! \d)|[a-z]{1,30}[A-Z][A-Za-z0-9]{0,40}"
                   r"|(?!\w{1,60}Innen)(?:[A-Z][a-z]{1,30}){2,6})(?![\w-])")
"""Abbreviations, except units and currencies next to a number and Roman numerals; and names such as `userName`, but no
German words for persons such as `LehrerInnen`."""
_WORD = regex.compile(WORD)
_REPETITION = re.compile(r"([^\W\d_]{1,3}?)\1{2,}", re.IGNORECASE)
_LONG_RUN = re.compile(r"([^\W\d_])\1{3,}", re.IGNORECASE)
"""A letter that is repeated for emphasis. Three equal letters may be those of a compound, such as `Schifffahrt`."""
_MARK_RUN = re.compile(r"([!?])[!?]{2,}|(\.{3})\.+")
"""Marks that are repeated for emphasis. Two marks (`?!`) and an ellipsis are common."""
_PROGRAM = re.compile(r"(?=.*(?:\w\(|[=<>]|\) ?\{)).*[;{}]\s*|[{}]+\s*|[{}] .*[;{]\s*")


class SpecialLineModel(NamedTuple):
    """The properties of a model that decide how its special lines are translated.

    Attributes:
        settings: which lines are special.
        languages: ISO 639-1 codes of source and target, or "".
        copies: whether lines without words are copied.
        spelling: corrects typos.
        usual_forms: the usual case of words.
        known_words: names and numbers for placeholders.
        encoder: encoder of the requests, which checks options with placeholders; None for no check.
    """

    settings: SpecialLineSettings
    languages: tuple[str, str]
    copies: bool
    spelling: TypoCorrector
    usual_forms: UsualForms
    known_words: KnownWords
    encoder: RequestEncoder | None = None


class UsualLine:
    """A line in its usual form, with its protected spans.

    Args:
        request: request of the line.
        model: the properties of the model.
        unknown: letters of the line that the vocabulary does not have.

    Attributes:
        text: the cleaned line.
        spans: the protected spans.
        case: "capitals", "title" or "lower"; "" for another letter case, or if the line is in its usual case.
        is_corrected: whether typos are corrected, single words in capitals are in their usual case, or marks left out.
        is_shortened: whether repeated letters or marks are left out.
        terms: terms of the terminology in the line.
        is_copied: whether the line is its own translation.
        is_foreign: whether the line has only unknown words.
    """

    def __init__(self, request: LineRequest, model: SpecialLineModel, unknown: frozenset[str]) -> None:
        self._request, self._model = request, model
        options, settings = request.options, model.settings
        is_on = settings.protection == "auto"
        self.text = clean(request.text)
        self.terms = [] if options.terminology is None else options.terminology.terms_in(request.text)
        words_of_terms = {word.casefold() for term in self.terms for word in _WORD.findall(term.source)}
        words, joined_words = (
            frozenset(word for word in protected_words if word.casefold() not in words_of_terms)
            for protected_words in ((self._names(), self._unreadable_words(unknown)) if is_on else ((), ())))
        protection = Protection(is_on, tuple(options.protect), words, joined_words)
        self.spans = LineSpans(self.text, protection, is_on, model.languages[0])
        self._texts = [part for part in self.spans.segment if isinstance(part, str)]
        # The tags of `a <b>word</b>;` do not make it a statement of a program.
        is_without_words = not any(map(str.isalpha, "".join(self._texts))) or (
            _is_program_line(plain_text(self.spans.segment)))
        self.is_copied = model.copies and is_without_words and self.may_be_copied
        self.case, self.is_corrected, self.is_shortened = "", False, False
        self.is_foreign = model.spelling.is_foreign(self._texts)
        if settings.casing != "off" and not self.is_copied:
            self._find_case()
        if not self.is_copied:
            self._correct()
            self._shorten_marks()

    def _names(self) -> frozenset[str]:
        """Return words that a translation must not change.

        These are abbreviations in capitals that the training text lacks, names such as `userName` unless the training
        text has them in another case, and sounds such as `hahaha` and `Hmmmm`.
        """
        usual_forms, spelling = self._model.usual_forms, self._model.spelling
        names = () if is_upper_case(self.text) or not usual_forms.has_words else (
            word for word in set(_NAME.findall(self.text))
            if usual_forms.most_frequent_form(word) in ((None,) if word.isupper() else (None, word)))
        sounds = (word for word in set(_WORD.findall(self.text)) if not is_unspaced(word) and (
            _REPETITION.fullmatch(word)
            or usual_forms.has_words and _LONG_RUN.search(word) and spelling.corrected(word) == word))
        return frozenset((*names, *sounds))

    def _unreadable_words(self, unknown: frozenset[str]) -> frozenset[str]:
        """Return the words of unknown letters without accents."""
        letters = {c for c in unknown if without_accents(c) == c}
        words = [word for word in dict.fromkeys(_WORD.findall(self.text)) if letters.intersection(word)]
        return frozenset(self._model.usual_forms.unreadable(words))

    @property
    def has_final_mark(self) -> bool:
        """Whether a final mark ends the line without the symbols and marks at its end."""
        parts = [part for part in self.spans.segment if not isinstance(part, Mark) and part != " "]
        return bool(parts) and isinstance(parts[-1], str) and has_final_mark(parts[-1])

    def _find_case(self) -> None:
        """Find the letter case, and the texts in the usual case if they differ.

        Of a line in several cases, only the words in capitals change.
        """
        texts, language = self._texts, self._model.languages[0]
        case = "capitals" if is_in_capitals(texts) else "title" if is_in_title_case(texts) else (
            "lower" if is_in_lower_case(texts) else "")
        forms = (self._model.usual_forms.of if case else self._model.usual_forms.without_emphasis)(texts)
        # A capital at the beginning alone changes little, and a model of lower-case text has no other usual case.
        if case in ("lower", "") and all(word == form for word, form in forms.items()):
            return
        usual = usual_case(texts, forms, language)
        if usual != texts:
            self.case, self.is_corrected, self._texts = case, not case, usual

    def _correct(self) -> None:
        """Correct the typos of the texts, but not of terms."""
        if self._model.settings.spelling == "off":
            return
        sources = [term.source for term in self.terms]
        corrected = [self._model.spelling.corrected(with_spaces(text), sources) for text in self._texts]
        self.is_corrected = self.is_corrected or corrected != self._texts
        self.is_shortened = any(map(_LONG_RUN.search, self._texts)) and not any(map(_LONG_RUN.search, corrected))
        self._texts = corrected

    def _shorten_marks(self) -> None:
        """Shorten runs of marks in the texts, which some models translate alone."""
        if self._model.settings.final_marks == "off":
            return
        shortened = [_MARK_RUN.sub(lambda match: match[1] or match[2], text) for text in self._texts]
        if shortened != self._texts:
            self.is_corrected = self.is_shortened = True
            self._texts = shortened

    @property
    def may_be_copied(self) -> bool:
        """Whether the request requires no words of the translation."""
        options = self._request.options
        return not (options.prefix or options.constraints or self.terms)

    def segment(self) -> Segment:
        """Return the segment of the line with its texts in the usual case and without typos."""
        remaining_texts = iter(self._texts)
        return tuple(next(remaining_texts) if isinstance(part, str) else part for part in self.spans.segment)


def _is_program_line(line: str) -> bool:
    """Return whether a line is a statement of a program, such as `print(x);`."""
    return _PROGRAM.fullmatch(line) is not None
