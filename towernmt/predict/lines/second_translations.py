"""Second translations of special lines: with placeholders, in the usual case, without typos, or with a final mark.

The translation with the smaller fault is returned; if both have the same, the one that keeps more of the protected
spans; otherwise the model's scores decide. A model copies unknown text with confidence. So the score of a copied line
in capitals does not count, and the translation of the line in the usual case is preferred to the copy. The mean
log-probability of the tokens shows whether a correction of typos or a final mark is right, because a model is uncertain
about text that it was not trained on. After a word without a full stop, many models write more words, so a fragment
whose translation is too long gets a full stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property

from towernmt.dataflow.text.letter_case import lower_case, upper_case
from towernmt.dataflow.text.modifiers import without_accents
from towernmt.documents.segments import Shielded, plain_text
from towernmt.predict.lines.faults import worse
from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineOptions, LineRequest, TranslateRequests, can_write
from towernmt.predict.lines.line_spans import with_small_numbers
from towernmt.predict.lines.protected_sentences import ProtectedLine, with_placeholders
from towernmt.predict.lines.required_texts import RequiredTexts
from towernmt.predict.lines.usual_line import SpecialLineModel, UsualLine
from towernmt.predict.lines.words_of_lines import lacks_sentences

_COPY = 0.6
"""Minimum similarity of a line and its translation, 0 to 1, at which the translation counts as a copy."""
_HOPELESS = -1.5
"""Mean log-probability of a token, in nats, below which a line with unknown letters is its own translation."""
_FOREIGN = -0.5
"""Mean log-probability of a token, in nats, below which a line of unknown words is its own translation."""
_WORSE = 0.5
"""Maximum loss of the mean log-probability of a token, in nats, by placeholders for small numbers and units."""
_FINAL_MARKS = ".!?…。．｡！？؟۔।॥።။։។"
_COMPARED = 1_000
"""Maximum number of characters of a line that are compared with its translation: the time is the square of it."""


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
        is_copied: whether the line is its own translation.
    """

    def __init__(self, request: LineRequest, model: SpecialLineModel, unknown: frozenset[str],
                 is_fragment: bool = False, needs_mark: bool = False) -> None:
        self.request, self.unknown, self._model = request, unknown, model
        self._usual = UsualLine(request, model, unknown)
        self.spans, self.is_copied = self._usual.spans, self._usual.is_copied
        self._is_fragment = is_fragment
        self._is_unmarked = needs_mark and not self._usual.has_final_mark
        self._numbers_with_placeholders: Sequence[int] = ()
        self._by_sentence = self._is_item = False

    @property
    def is_special(self) -> bool:
        """Whether the line is copied, or may need a second translation."""
        usual = self._usual
        return bool(self.is_copied or usual.case or usual.is_corrected or usual.is_foreign or self.unknown
                    or self._is_unmarked or not self.spans.is_empty)

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
        line = plain_text(self._usual.segment())
        self._by_sentence = (self._model.settings.sentences != "off" and self._usual.may_be_copied
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
        if self.is_copied or not self._is_changed or not self.spans.is_empty or not self._usual.may_be_copied:
            return []
        return [self.second_request(line) for line in self._changed_lines((), translate)]

    @property
    def _is_changed(self) -> bool:
        """Whether its second line differs from the line in more than placeholders."""
        return bool(self._usual.case or self._usual.is_corrected or self.unknown or self._is_fragment
                    or self._is_unmarked)

    def _changed_lines(self, lost_numbers: Sequence[int], translate: TranslateRequests) -> list[ProtectedLine]:
        """Return the second lines with each final mark, without those that equal the line."""
        lines = [self._line_with(mark, lost_numbers, translate) for mark in self._marks()]
        return [line for line in lines if line.sentence is not None
                and (line.sentence.names or self._by_sentence or line.sentence.text != self._usual.text)]

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
        segment = self._usual.segment()
        if self.unknown:
            segment = tuple(self._without_unknown_accents(part) if isinstance(part, str) else part for part in segment)
        segment = with_small_numbers(segment, lost_numbers)
        has_placeholders = any(isinstance(part, Shielded) for part in segment)
        source_prefix = self.request.options.source_prefix
        known_words = self._model.known_words.of(translate, source_prefix) if has_placeholders else ()
        return ProtectedLine(self._usual.text, (*segment, mark) if mark else segment, known_words)

    def _marks(self) -> Sequence[str]:
        """Return the final marks to try, in the script of the line; "" for none."""
        if not (self._is_fragment or self._is_unmarked):
            return ("",)
        last_character = self._usual.text[-1:]      # a line of invisible characters has none
        stop, question = ("。", "？") if "\u3040" <= last_character <= "\u9fff" else (
            "।" if "\u0900" <= last_character <= "\u09ff" else ".",
            "؟" if "\u0600" <= last_character <= "\u06ff" else "?")
        return (stop, question) if self._is_unmarked else (stop,)

    def _without_unknown_accents(self, text: str) -> str:
        """Return a text without the accents of unknown letters."""
        return "".join(without_accents(c) if c in self.unknown else c for c in text)

    def second_request(self, line: ProtectedLine) -> LineRequest:
        """Return the request of a second line."""
        sentence = line.sentence
        return self.request if sentence is None else replace(
            self.request, text=sentence.text, options=with_placeholders(self.request.options, sentence),
            by_sentence=self.request.by_sentence or self._by_sentence)

    def second_translation(self, line: ProtectedLine, translation: Translation) -> Translation:
        """Return a translation of a second line as one of this line."""
        required = self._required_by(self.second_request(line).options)
        if self._usual.case == "capitals":
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

        num_missing = self._num_missing(first_translation[0].text)
        second_translations = [translation for translation in second_translations
                               if self._num_missing(translation[0].text) <= num_missing]
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
        if self._usual.is_shortened or self._by_sentence:   # models are sure of repetitions, and of what they leave out
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
        if self._usual.case == "capitals":
            is_clear = all(a > b for a, b in zip(*scores, strict=True))
            return first_translation if is_clear and not self._is_copy(first_hypothesis.text) else second_translation
        if self._usual.is_corrected or self._is_unmarked or self._is_item:
            return second_translation if scores[1][1] > scores[0][1] else first_translation
        if not self._usual.case and not self.unknown:
            return first_translation
        return second_translation if all(b > a for a, b in zip(*scores, strict=True)) else first_translation

    def _num_missing(self, text: str) -> int:
        """Return the number of required texts, and of target terms in any letter case, that a translation lacks.

        A second line may have a placeholder or another letter case in place of a source term.
        """
        def folded(text: str) -> str:
            return lower_case(text, self._model.languages[1]).casefold()

        folded_text = folded(text)
        return self._required.num_missing(text) + sum(
            folded(term.target) not in folded_text for term in self._usual.terms)

    def _num_lost(self, text: str) -> int:
        """Return the number of small numbers and units that a translation lacks or has spelled out."""
        return len(self.spans.lost_small_numbers(text)) + self.spans.num_changed_units(text)

    def _is_copy(self, text: str) -> bool:
        line, translation = self._usual.text[:_COMPARED].casefold(), text[:_COMPARED].casefold()
        return SequenceMatcher(None, line, translation, False).ratio() >= _COPY

    def is_hopeless(self, translation: Translation) -> bool:
        """Return whether the line has unknown letters, or only unknown words, and the model is unsure."""
        if not self._usual.may_be_copied or self._model.settings.copy_lines == "off":
            return False
        mean = translation[0].mean_log_prob
        return bool(self.unknown) and mean < _HOPELESS or self._usual.is_foreign and mean < _FOREIGN


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
    return translation.changed(lambda hypothesis: hypothesis.with_text(change(hypothesis.text)))


def _without_final_marks(text: str, start: int) -> str:
    """Return a translation without its final marks, from an index on."""
    stripped = text.rstrip()
    unmarked = stripped.rstrip(_FINAL_MARKS)
    return text if unmarked == stripped else text[:max(len(unmarked.rstrip()), start)]
