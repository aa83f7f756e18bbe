"""Second translations of special lines: with placeholders, in the usual case, without typos, or with a final mark.

The translation with the smaller fault is returned; if both have the same, the one that keeps more of the protected
spans; otherwise the model's scores decide. A model copies unknown text with confidence. So the score of a copied line
in capitals does not count, and the translation of the line in the usual case is preferred to the copy. The mean
log-probability of the tokens shows whether a correction of typos or a final mark is right, because a model is uncertain
about text that it was not trained on. After a word without a full stop, many models write more words, so a fragment
whose translation is too long gets a full stop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import NamedTuple

from towernmt.dataflow.text.letter_case import is_upper_case, upper_case
from towernmt.dataflow.text.modifiers import without_accents
from towernmt.dataflow.text.text_lines import clean
from towernmt.dataflow.text.word_segmentation import is_unspaced
from towernmt.dataflow.vocabulary.source_text import has_final_mark
from towernmt.documents.segments import Mark, Segment, Shielded, plain_text
from towernmt.documents.shields import Protection
from towernmt.predict.lines.capitals import (
    UsualForms,
    is_in_capitals,
    is_in_lower_case,
    is_in_title_case,
    usual_case,
)
from towernmt.predict.lines.faults import worse
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.known_words import KnownWords
from towernmt.predict.lines.line_options import LineOptions, LineRequest, TranslateRequests, can_write
from towernmt.predict.lines.line_spans import LineSpans, with_small_numbers
from towernmt.predict.lines.protected_sentences import ProtectedLine, with_placeholders
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.required_texts import RequiredTexts
from towernmt.predict.lines.spelling import TypoCorrector, with_spaces
from towernmt.predict.lines.words_of_lines import lacks_sentences
from towernmt.predict.search.search_settings import SpecialLineSettings

_COPY = 0.6
"""Minimum similarity of a line and its translation, 0 to 1, at which the translation counts as a copy."""
_HOPELESS = -1.5
"""Mean log-probability of a token, in nats, below which a line with unknown letters is its own translation."""
_FOREIGN = -0.5
"""Mean log-probability of a token, in nats, below which a line of unknown words is its own translation."""
_WORSE = 0.5
"""Maximum loss of the mean log-probability of a token, in nats, by placeholders for small numbers and units."""
_NAME = re.compile(r"(?<![\w-])(?:(?<!\d )(?![IVXLCDM]+\b)[A-Z]{2,6}(?! \d)|[a-z]{1,30}[A-Z][A-Za-z0-9]{0,40}"
                   r"|(?!\w{1,60}Innen)(?:[A-Z][a-z]{1,30}){2,6})(?![\w-])")
"""Abbreviations, except units and currencies next to a number and Roman numerals; and names such as `userName`, but no
German words for persons such as `LehrerInnen`."""
_WORD = re.compile(r"\w+")
_REPETITION = re.compile(r"([^\W\d_]{1,3}?)\1{2,}", re.IGNORECASE)
_LONG_RUN = re.compile(r"([^\W\d_])\1{3,}", re.IGNORECASE)
"""A letter that is repeated for emphasis. Three equal letters may be those of a compound, such as `Schifffahrt`."""
_MARK_RUN = re.compile(r"([!?])[!?]{2,}|(\.{3})\.+")
"""Marks that are repeated for emphasis. Two marks (`?!`) and an ellipsis are common."""
_PROGRAM = re.compile(r"(?=.*(?:\w\(|[=<>]|\) ?\{)).*[;{}]\s*|[{}]+\s*|[{}] .*[;{]\s*")
_FINAL_MARKS = ".!?…。．｡।！？؟"
_COMPARED = 1_000
"""Maximum number of characters of a line that are compared with its translation: the time is the square of it."""


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


class SpecialLine:
    """A line that may need a second translation.

    Args:
        request: request of the line.
        model: the properties of the model.
        unknown: letters of the line that the vocabulary does not have.
        is_fragment: whether the line is a fragment with a translation that is too long.
        needs_mark: whether the line needs a final mark, which nearly all lines of the training text have.

    Attributes:
        spans: the protected spans.
        case: "capitals", "title" or "lower"; "" for another letter case, or if the line is in its usual case.
        is_corrected: whether the second translation is that of a line with corrected typos, with the usual case of its
            words in capitals, or with fewer marks.
        is_copied: whether the line is its own translation.
    """

    def __init__(self, request: LineRequest, model: SpecialLineModel, unknown: frozenset[str],
                 is_fragment: bool = False, needs_mark: bool = False) -> None:
        self.request, self.unknown, self._model = request, unknown, model
        self._is_fragment = is_fragment
        options, settings = request.options, model.settings
        is_on = settings.protection == "auto"
        self._line = clean(request.text)
        words, joined_words = (self._names(), self._unreadable_words()) if is_on else (frozenset(), frozenset())
        self.spans = LineSpans(self._line, Protection(is_on, tuple(options.protect), words, joined_words), is_on)
        texts = [part for part in self.spans.segment if isinstance(part, str)]
        is_without_words = not any(map(str.isalpha, "".join(texts))) or is_program_line(self._line)
        self.is_copied = model.copies and is_without_words and self._may_be_copied
        self._is_unmarked = needs_mark and not self._has_final_mark
        self.case, self.is_corrected, self._is_shortened, self._texts = "", False, False, texts
        self._numbers_with_placeholders: Sequence[int] = ()
        self._by_sentence = self._is_item = False
        self._is_foreign = model.spelling.is_foreign(texts)
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
        names = () if is_upper_case(self._line) or not usual_forms.has_words else (
            word for word in set(_NAME.findall(self._line))
            if usual_forms.most_frequent_form(word) in ((None,) if word.isupper() else (None, word)))
        sounds = (word for word in set(_WORD.findall(self._line)) if not is_unspaced(word) and (
            _REPETITION.fullmatch(word)
            or usual_forms.has_words and _LONG_RUN.search(word) and spelling.corrected(word) == word))
        return frozenset((*names, *sounds))

    def _unreadable_words(self) -> frozenset[str]:
        """Return the words of unknown letters without accents."""
        letters = {c for c in self.unknown if without_accents(c) == c}
        words = [word for word in dict.fromkeys(_WORD.findall(self._line)) if letters.intersection(word)]
        return frozenset(self._model.usual_forms.unreadable(words))

    @property
    def _has_final_mark(self) -> bool:
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
        terminology = self.request.options.terminology
        terms = [] if terminology is None else [term.source for term in terminology.terms_in(self.request.text)]
        corrected = [self._model.spelling.corrected(with_spaces(text), terms) for text in self._texts]
        self.is_corrected = self.is_corrected or corrected != self._texts
        self._is_shortened = any(map(_LONG_RUN.search, self._texts)) and not any(map(_LONG_RUN.search, corrected))
        self._texts = corrected

    def _shorten_marks(self) -> None:
        """Shorten runs of marks in the texts, which some models translate alone."""
        if self._model.settings.final_marks == "off":
            return
        shortened = [_MARK_RUN.sub(lambda match: match[1] or match[2], text) for text in self._texts]
        if shortened != self._texts:
            self.is_corrected = self._is_shortened = True
            self._texts = shortened

    @property
    def _may_be_copied(self) -> bool:
        """Whether the request requires no words of the translation."""
        options = self.request.options
        return not (options.prefix or options.constraints
                    or options.terminology is not None and options.terminology.terms_in(self.request.text))

    @property
    def is_special(self) -> bool:
        """Whether the line is copied, or may need a second translation."""
        return bool(self.is_copied or self.case or self.is_corrected or self.unknown or self._is_unmarked
                    or self._is_foreign or not self.spans.is_empty)

    def with_numbers(self, translation: Translation, must_be_similar: bool = True) -> Translation:
        """Return a translation with the numbers of the line in place of those that the model has changed.

        Args:
            translation: translation of the line.
            must_be_similar: whether only numbers are replaced that have most of their digits in common.
        """
        options = self.request.options
        if self.is_copied or options.prefix or options.constraints or not (
                self.spans.changed(translation[0].text) or self.spans.lost_small_numbers(translation[0].text)):
            return translation
        return _changed(translation, lambda text: self.spans.with_numbers(text, must_be_similar))

    def second_lines(self, first_translation: Translation, translate: TranslateRequests) -> list[ProtectedLine]:
        """Return the lines to translate after a first translation; none if that is the only one.

        Args:
            first_translation: translation of the line.
            translate: translates requests, to find words for placeholders.
        """
        text = first_translation[0].text
        item = self.spans.lost_item_number(text)
        lost_numbers = list(dict.fromkeys([*self.spans.lost_small_numbers(text), *item]))
        self._is_item = bool(item)
        line = plain_text(self._segment())
        self._by_sentence = (self._model.settings.sentences != "off" and self._may_be_copied
                             and lacks_sentences(line, text))
        if self.is_copied or not (self._is_changed or self._by_sentence or lost_numbers or self.spans.changed(text)
                                  or self.spans.num_changed_units(text)):
            return []
        # In its usual case and without typos, the line may keep the numbers: placeholders for them are a third step.
        return self._changed_lines(item if self._is_changed else lost_numbers, translate)

    def early_requests(self, translate: TranslateRequests) -> list[LineRequest]:
        """Return requests of second lines that do not depend on the first translation; see `EarlyTranslations`.

        Args:
            translate: translates requests.
        """
        if self.is_copied or not self._is_changed or not self.spans.is_empty or not self._may_be_copied:
            return []
        return [self.second_request(line) for line in self._changed_lines((), translate)]

    @property
    def _is_changed(self) -> bool:
        """Whether its second line differs from the line in more than placeholders."""
        return bool(self.case or self.is_corrected or self.unknown or self._is_fragment or self._is_unmarked)

    def _changed_lines(self, lost_numbers: Sequence[int], translate: TranslateRequests) -> list[ProtectedLine]:
        """Return the second lines with each final mark, without those that equal the line."""
        lines = [self._line_with(mark, lost_numbers, translate) for mark in self._marks()]
        return [line for line in lines if line.sentence is not None
                and (line.sentence.names or self._by_sentence or line.sentence.text != self._line)]

    def lines_with_numbers(self, best_translation: Translation, translate: TranslateRequests) -> list[ProtectedLine]:
        """Return the lines to translate if the best translation lacks small numbers; usually none."""
        protected_numbers = self._numbers_with_placeholders
        lost_numbers = set(self.spans.lost_small_numbers(best_translation[0].text)).difference(protected_numbers)
        if not lost_numbers:
            return []
        return [self._line_with(mark, [*protected_numbers, *lost_numbers], translate) for mark in self._marks()]

    def _line_with(self, mark: str, lost_numbers: Sequence[int], translate: TranslateRequests) -> ProtectedLine:
        """Return the line in its usual case and without typos, with placeholders and a final mark.

        Args:
            mark: the final mark, or "".
            lost_numbers: small numbers that get placeholders.
            translate: translates requests, to find words for placeholders.
        """
        self._numbers_with_placeholders = lost_numbers
        segment = self._segment()
        if self.unknown:
            segment = tuple(self._without_unknown_accents(part) if isinstance(part, str) else part for part in segment)
        segment = with_small_numbers(segment, lost_numbers)
        has_placeholders = any(isinstance(part, Shielded) for part in segment)
        known_words = self._model.known_words.of(translate) if has_placeholders else ()
        return ProtectedLine(self._line, (*segment, mark) if mark else segment, known_words)

    def _segment(self) -> Segment:
        """Return the segment of the line with its texts in the usual case and without typos."""
        remaining_texts = iter(self._texts)
        return tuple(next(remaining_texts) if isinstance(part, str) else part for part in self.spans.segment)

    def _marks(self) -> Sequence[str]:
        """Return the final marks to try, in the script of the line; "" for none."""
        if not (self._is_fragment or self._is_unmarked):
            return ("",)
        last_character = self._line[-1]
        stop, question = ("。", "？") if "\u3040" <= last_character <= "\u9fff" else (
            ".", "؟" if "\u0600" <= last_character <= "\u06ff" else "?")
        return (stop, question) if self._is_unmarked else (stop,)

    def _without_unknown_accents(self, text: str) -> str:
        """Return a text without the accents of unknown letters."""
        return "".join(without_accents(c) if c in self.unknown else c for c in text)

    def second_request(self, line: ProtectedLine) -> LineRequest:
        """Return the request of a second line."""
        sentence = line.sentence
        return self.request if sentence is None else replace(
            self.request, text=sentence.text, options=with_placeholders(self.request.options, sentence),
            by_sentence=self._by_sentence)

    def second_translation(self, line: ProtectedLine, translation: Translation) -> Translation:
        """Return a translation of a second line as one of this line."""
        required = self._required_by(self.second_request(line).options)
        if self.case == "capitals":
            translation = _changed(translation, lambda text: required.changed_around(
                text, lambda other_text: upper_case(other_text, self._model.languages[1])))
        if self._is_fragment or self._is_unmarked:
            translation = _changed(translation, lambda text: _without_final_marks(text, required.end_of_last(text)))
        return line.restored(translation, self.request.options, self._required)

    def can_have(self, options: LineOptions) -> bool:
        """Return whether the vocabulary can write the options of a second line, which may have placeholders."""
        encoder = self._model.encoder
        return encoder is None or options is self.request.options or can_write(encoder.check, options)

    @cached_property
    def _required(self) -> RequiredTexts:
        """The texts that each translation of the line contains. The options must be valid."""
        return self._required_by(self.request.options)

    def _required_by(self, options: LineOptions) -> RequiredTexts:
        return RequiredTexts(options, None if self._model.encoder is None else self._model.encoder.written)

    def best(self, first_translation: Translation, second_translations: Sequence[Translation]) -> Translation:
        """Return the best one of the translations of the line and of its second lines."""
        def order(translation: Translation) -> tuple[int, float]:
            return -self.spans.changed(translation[0].text), translation[0].mean_log_prob

        num_missing = self._required.num_missing(first_translation[0].text)
        second_translations = [translation for translation in second_translations
                               if self._required.num_missing(translation[0].text) <= num_missing]
        if not second_translations:
            return first_translation
        best_translation = second_translations[0]
        for translation in second_translations[1:]:
            if worse(best_translation[0].fault, translation[0].fault) or (
                    not worse(translation[0].fault, best_translation[0].fault)
                    and order(translation) > order(best_translation)):
                best_translation = translation
        return self._better(first_translation, best_translation)

    def _better(self, first_translation: Translation, second_translation: Translation) -> Translation:
        first_hypothesis, second_hypothesis = first_translation[0], second_translation[0]
        if first_hypothesis.fault != second_hypothesis.fault:
            return second_translation if worse(first_hypothesis.fault, second_hypothesis.fault) else first_translation
        num_restored_spans = self.spans.changed(first_hypothesis.text) - self.spans.changed(second_hypothesis.text)
        if num_restored_spans:
            return second_translation if num_restored_spans > 0 else first_translation
        if self._is_shortened or self._by_sentence:     # models are sure of repetitions, and of what they leave out
            return second_translation
        num_regained = self._num_lost(first_hypothesis.text) - self._num_lost(second_hypothesis.text)
        if num_regained > 0 and first_hypothesis.mean_log_prob - second_hypothesis.mean_log_prob < _WORSE:
            return second_translation
        if self._is_fragment:
            is_better = len(second_hypothesis.text) < len(first_hypothesis.text) and (
                second_hypothesis.log_prob > first_hypothesis.log_prob)
            return second_translation if is_better else first_translation
        scores = [(hypothesis.log_prob, hypothesis.mean_log_prob)
                  for hypothesis in (first_hypothesis, second_hypothesis)]
        if self.case == "capitals":
            is_clear = all(a > b for a, b in zip(*scores, strict=True))
            return first_translation if is_clear and not self._is_copy(first_hypothesis.text) else second_translation
        if self.is_corrected or self._is_unmarked or self._is_item:
            return second_translation if scores[1][1] > scores[0][1] else first_translation
        if not self.case and not self.unknown:
            return first_translation
        return second_translation if all(b > a for a, b in zip(*scores, strict=True)) else first_translation

    def _num_lost(self, text: str) -> int:
        """Return the number of small numbers and units that a translation lacks or has spelled out."""
        return len(self.spans.lost_small_numbers(text)) + self.spans.num_changed_units(text)

    def _is_copy(self, text: str) -> bool:
        line, translation = self._line[:_COMPARED].casefold(), text[:_COMPARED].casefold()
        return SequenceMatcher(None, line, translation, False).ratio() >= _COPY

    def is_hopeless(self, translation: Translation) -> bool:
        """Return whether the line has unknown letters, or only unknown words, and the model is unsure."""
        if not self._may_be_copied or self._model.settings.copy_lines == "off":
            return False
        mean = translation[0].mean_log_prob
        return bool(self.unknown) and mean < _HOPELESS or self._is_foreign and mean < _FOREIGN


def is_program_line(line: str) -> bool:
    """Return whether a line is a statement of a program, such as `print(x);`."""
    return _PROGRAM.fullmatch(line) is not None


def better_translations(lines: Sequence[SpecialLine], first_translations: Sequence[Translation],
                        translate: TranslateRequests) -> list[Translation]:
    """Return the translations of special lines.

    Args:
        lines: the lines.
        first_translations: their first translations.
        translate: translates requests.
    """
    translations = [line.with_numbers(translation) for line, translation in zip(lines, first_translations, strict=True)]
    second_lines = {index: line.second_lines(translations[index], translate) for index, line in enumerate(lines)}
    while any(second_lines.values()):
        second_translations = _translations(lines, second_lines, translate)
        second_lines = {}
        for index, translations_of_line in second_translations.items():
            best_translation = lines[index].best(translations[index], translations_of_line)
            second_lines[index] = lines[index].lines_with_numbers(best_translation, translate)
            translations[index] = best_translation
    # If no second translation is better, a wrong number is still replaced by the missing one.
    return [line.with_numbers(translation, must_be_similar=False) if line.spans.changed(translation[0].text)
            else translation for line, translation in zip(lines, translations, strict=True)]


def _translations(lines: Sequence[SpecialLine], second_lines: Mapping[int, Sequence[ProtectedLine]],
                  translate: TranslateRequests) -> dict[int, list[Translation]]:
    """Return the translations of second lines, by the index of the line.

    Lines are left out whose options the vocabulary cannot write with placeholders.

    Args:
        lines: the lines.
        second_lines: the second lines of each line, by its index.
        translate: translates requests.
    """
    requests = [(index, second_line, lines[index].second_request(second_line))
                for index, lines_of_index in second_lines.items() for second_line in lines_of_index]
    requests = [(index, second_line, request) for index, second_line, request in requests
                if lines[index].can_have(request.options)]
    translations = translate([request for _, _, request in requests], again=True) if requests else iter(())
    translations_by_index: dict[int, list[Translation]] = {}
    for (index, second_line, _), translation in zip(requests, translations, strict=True):
        translations_by_index.setdefault(index, []).append(lines[index].second_translation(second_line, translation))
    return translations_by_index


def _changed(translation: Translation, change: Callable[[str], str]) -> Translation:
    """Return a translation with changed texts."""
    return translation.changed(lambda hypothesis: hypothesis.replaced(text=change(hypothesis.text)))


def _without_final_marks(text: str, start: int) -> str:
    """Return a translation without its final marks, from an index on."""
    stripped = text.rstrip()
    unmarked = stripped.rstrip(_FINAL_MARKS)
    return text if unmarked == stripped else text[:max(len(unmarked.rstrip()), start)]
