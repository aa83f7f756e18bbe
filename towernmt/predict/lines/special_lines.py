"""Lines that models are not trained for: without words or marks, in capitals, with typos, spans or unknown letters.

Most lines are ordinary, and pass unchanged. A line without words is its own translation. Another special line may be
translated a second time, as `second_translations` decides. All of this is around the search, so it suits every engine.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from towernmt.core.thread_maps import calls_in_threads, map_ahead
from towernmt.dataflow.text.clean_text import clean, split_tags
from towernmt.dataflow.text.word_segmentation import count_unspaced_letters
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.source_text import SourceText, has_final_mark, signs_at_end
from towernmt.predict.lines.capitals import UsualForms, may_have_emphasis
from towernmt.predict.lines.early_translations import LineReader, TranslatedPart
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.known_words import KnownWords
from towernmt.predict.lines.line_options import LineRequest, TranslateRequests
from towernmt.predict.lines.request_encoder import RequestEncoder, is_one_token
from towernmt.predict.lines.spelling import TypoCorrector
from towernmt.predict.lines.words_of_lines import lacks_sentences
from towernmt.predict.search.search_settings import SWITCH, SpecialLineSettings

if TYPE_CHECKING:
    from towernmt.predict.lines.second_translations import SpecialLine
    from towernmt.predict.lines.usual_line import SpecialLineModel

_ALIGNED_WORDS = 1_000
"""Maximum number of words of a copied line that gets word alignments: as JSON, their size is the square of it."""
_SIGN_OF_SPANS = re.compile(r"[\d@#`*_\[|=>+^»«‚‹›\uff03/\\%{$&<~£€¥"
                            r"\u00a7\u00a9\u00ae\u00b2-\u00b9\u2020-\u2bff\u3030\u303d"
                            r"\u3297\u3299\ufe0f\U0001f000-\U0001faff]")
_SIGN_IN_WORDS = re.compile(r"[.,:;!?]\w|[:;][-'’()]|\(\)|xd|^\W*(?:[-–—•‣◦▪·]\s|\(?[a-z]\))"
                            r"|(?:^|\s)--?[a-z]|^\(|([^\W\d_]{1,3}?)\1\1|[!?]{3}|\.{4}", re.IGNORECASE)
"""Signs of protected spans in a line of letters and common punctuation, and letters and marks that are repeated."""
_MARKED = 0.9
"""Minimum share of the lines of the training text with a final mark, at which lines without one are special."""
_FRAGMENT, _LONG, _LONG_BY = 3, 3, 10
"""Maximum number of words of a fragment; a translation with more than 3 times its characters, and 10, is too long."""
_LETTERS_OF_WORD = 2
"""Mean number of letters of a word in a script without spaces between words."""
_CLOSING = " \"'“”‘’»«)]）」』】》〉"
_MARKS_OF_OTHER_SCRIPTS = frozenset("。．｡！？؟۔।॥;\u037e")
"""Final marks of Chinese, Japanese, Arabic, Urdu, Indian scripts and Greek."""
_MOST_ORDINARY_WORDS = 100_000
"""Maximum number of words that are remembered as ordinary."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class SpecialLines:
    """Finds the special lines among the requests for a model, and completes their translations.

    Args:
        settings: which lines are special.
        vocabulary: vocabulary of the source.
        languages: ISO 639-1 codes of source and target, or "", for the letter case and ordinal numbers.
        source_text: facts about the training text; without them, no typos are corrected, and no marks are added.
        encoder: encoder of requests, which checks options with placeholders; None if each is valid.
    """

    def __init__(self, settings: SpecialLineSettings, vocabulary: Vocabulary, languages: tuple[str, str] = ("", ""),
                 source_text: SourceText = SourceText(),  # noqa: B008 -- immutable
                 encoder: RequestEncoder | None = None) -> None:
        self._settings, self._vocabulary, self._languages, self._encoder = settings, vocabulary, languages, encoder
        # Words are looked up to correct typos, and to copy lines of unknown words.
        looked_up = source_text.words if SWITCH[0] in (settings.spelling, settings.copy_lines) else ()
        self._spelling = TypoCorrector(looked_up, languages[0])
        self._usual_forms = UsualForms(source_text.words, vocabulary, languages[0])
        self._known_words = KnownWords(source_text.words)
        self._expects_marks = settings.final_marks != SWITCH[1] and source_text.marked >= _MARKED
        self._is_on = vocabulary.streams == 1
        self._ordinary = set(string.ascii_letters + " .,;:!?'\"()-")
        self._unknown: set[str] = set()
        self._ordinary_words: set[str] = set()

    def translated(self, requests: Iterable[LineRequest], translate: TranslateRequests, window: int,
                   parts: int = 0) -> Iterator[Translation]:
        """Yield the translation of each request; all translations of a window are yielded before the next one is read.

        Args:
            requests: requests of the lines.
            translate: translates requests, with `parts` also in several threads at the same time. It yields all
                translations of a window before it reads the next one.
            window: number of requests of a window.
            parts: number of parts of a window whose second translations are searched at the same time, each in its own
                thread; some begin at the same time as the first translations. 0: all wait for those of the window.

        Raises:
            DataError: a request is not valid. The translations of those before it are yielded first.
        """
        if not self._is_on:
            yield from translate(requests, again=False)
            return
        with calls_in_threads(1, "early") as early_calls:
            reader = LineReader(self.special_line, self._special_by_translation, translate, window,
                                -(-window // max(parts, 1)), early_calls if parts else None)
            for _, translations in map_ahead(self._finished, reader.parts(requests), max(parts, 1),
                                             lambda part: parts < 2 or part.is_ordinary, attrgetter("ends_window")):
                yield from translations
            if reader.error is not None:
                raise reader.error

    def _finished(self, part: TranslatedPart) -> list[Translation]:
        special_lines = [(index, line) for index, (_, line, _) in enumerate(part.lines) if line is not None]
        translations = [translation for _, _, translation in part.lines]
        if special_lines:
            from towernmt.predict.lines.second_translations import better_translations

            first_translations = [translations[index] for index, _ in special_lines]
            improved_translations = better_translations([line for _, line in special_lines], first_translations,
                                                        part.translate)
            for (index, line), translation in zip(special_lines, improved_translations, strict=True):
                translations[index] = (copied(line.request.text) if line.is_copied or line.is_hopeless(translation)
                                       else translation)
        if self._settings.final_marks == SWITCH[1]:
            return translations
        return [with_final_run(request, translation)
                for (request, _, _), translation in zip(part.lines, translations, strict=True)]

    def special_line(self, request: LineRequest) -> SpecialLine | None:
        """Return what is special about a line, or None for an ordinary line."""
        text, options = request.text, request.options
        is_ordinary = self._ordinary.issuperset(text) or self._is_ordinary(text)
        may_have_spans = not is_ordinary or bool(options.protect or _SIGN_IN_WORDS.search(text))
        may_have_case = self._settings.casing != SWITCH[1] and (
            text.islower() or text.isupper()
            or text.replace("'", "").replace("’", "").istitle())     # "Isn't" begins with a capital
        has_letters = text[:1].isalpha() or any(map(str.isalpha, text))
        needs_mark = self._expects_marks and len(text.split()) > 1 and not options.prefix
        is_unmarked = needs_mark and not has_final_mark(text)
        if not text or text.isspace() or options.inputs or self._has_tag(text) or has_letters and not (
                may_have_spans or may_have_case or is_unmarked or self._has_special_word(text)):
            return None
        from towernmt.predict.lines.second_translations import SpecialLine

        unknown = frozenset(self._unknown.intersection(clean(text)))
        line = SpecialLine(request, self._model, unknown, needs_mark=needs_mark)
        return line if line.is_special else None

    def _special_by_translation(self, request: LineRequest, translation: Translation) -> SpecialLine | None:
        """Return an ordinary line as a special one if its translation has a visible fault.

        The translation of a fragment may be too long, and that of several sentences may lack one.
        """
        text, options, translated_text = request.text, request.options, translation[0].text
        is_fragment = len(translated_text) > _LONG * len(text) + _LONG_BY and not (
            has_final_mark(text) or options.prefix or self._settings.final_marks == SWITCH[1]) and (
            max(len(text.split()), count_unspaced_letters(text) // _LETTERS_OF_WORD) <= _FRAGMENT)
        has_lost_sentences = self._settings.sentences != SWITCH[1] and lacks_sentences(text, translated_text)
        if options.inputs or not (is_fragment or has_lost_sentences) or self._has_tag(text):
            return None
        from towernmt.predict.lines.second_translations import SpecialLine

        return SpecialLine(request, self._model, frozenset(), is_fragment=is_fragment)

    def _has_tag(self, text: str) -> bool:
        """Return whether a text begins with tags that are tokens, such as that of the target language.

        A second translation could lose them, so such a line has none. `LineOptions.source_prefix` has no such limit.
        """
        tags = split_tags(text)[0].split() if text.startswith(("<", ">>")) else []
        return bool(tags) and all(is_one_token(tag, self._vocabulary) for tag in tags)

    def _has_special_word(self, text: str) -> bool:
        """Return whether a word of a text may have a typo, or capitals for emphasis. Ordinary words are remembered."""
        for word in text.split():
            if word not in self._ordinary_words:
                if self._spelling.has_unknown(word) or (
                        self._settings.casing != SWITCH[1] and may_have_emphasis(word)):
                    return True
                if len(self._ordinary_words) < _MOST_ORDINARY_WORDS:
                    self._ordinary_words.add(word)
        return False

    def _is_ordinary(self, text: str) -> bool:
        """Return whether a text has only known letters, and no sign of a protected span. Both are remembered."""
        text = clean(text)      # the vocabulary may know only the composed forms of letters
        characters = sorted(set(text) - self._ordinary - self._unknown)
        letters = [c for c in characters if c.isalpha() and not c.isascii()]
        if letters and self._settings.copy_lines != SWITCH[1]:
            ids = self._vocabulary.encode_batch(letters)
            self._unknown |= {c for c, letter_ids in zip(letters, ids, strict=True)
                              if self._vocabulary.unk_id in letter_ids}
        self._ordinary |= {c for c in characters if c not in self._unknown and not _SIGN_OF_SPANS.match(c)}
        return self._ordinary.issuperset(text)

    @cached_property
    def _model(self) -> SpecialLineModel:
        from towernmt.predict.lines.usual_line import SpecialLineModel

        return SpecialLineModel(self._settings, self._languages, self._copies, self._spelling, self._usual_forms,
                                self._known_words, self._encoder)

    @cached_property
    def _copies(self) -> bool:
        """Whether lines without words are copied: unless the vocabulary has no letters."""
        if self._settings.copy_lines == SWITCH[1]:
            return False
        pieces = (self._vocabulary.id_to_piece(id) for id in range(len(self._vocabulary)))
        return any(any(map(str.isalpha, piece)) for piece in pieces
                   if piece not in SPECIAL_PIECES and not _BYTE.fullmatch(piece))


def with_final_run(request: LineRequest, translation: Translation) -> Translation:
    """Return the translations of a line with several final marks, such as `?!` or `...`, with the same final marks.

    A translation that ends with the marks of another script, such as `？！`, does not change.
    """
    marks = _final_marks(clean(request.text))
    if len(marks) < 2 or request.options.constraints:
        return translation
    prefix = clean(request.options.prefix)

    def changed(hypothesis: Hypothesis) -> Hypothesis:
        text = hypothesis.text.rstrip(_CLOSING)
        if not text or _final_marks(text) == marks or not _MARKS_OF_OTHER_SCRIPTS.isdisjoint(signs_at_end(text)):
            return hypothesis
        unmarked_text = text.rstrip("!?.… ")
        space = " " if text.startswith(" ", len(unmarked_text)) else ""     # as in French
        if hypothesis.text.startswith(prefix) and not unmarked_text.startswith(prefix):
            return hypothesis
        return hypothesis.with_text(unmarked_text + space + marks + hypothesis.text[len(text):])

    return translation.changed(changed)


def _final_marks(text: str) -> str:
    """Return the marks at the end of a text before closing quotes and brackets, with an ellipsis as three points.

    A Chinese ellipsis has two characters.
    """
    text = text.rstrip(_CLOSING)
    return text[len(text.rstrip("!?.…")):].replace("……", "...").replace("…", "...")


def copied(text: str) -> Translation:
    """Return a line as its own translation, each word aligned with itself."""
    words = text.split()
    details = None
    if len(words) <= _ALIGNED_WORDS:
        details = TokenDetails([], [], alignment=WordAlignment(words, words, _identity(len(words))))
    return Translation([Hypothesis(text, 0.0, details)])


def _identity(size: int) -> np.ndarray:
    """Return the identity, float32 `[size, size]`, as a read-only view whose memory is linear in its size.

    Most alignments of copied lines are never read, but a window of lines has them all.
    """
    diagonal = np.zeros(max(2 * size - 1, 0), np.float32)
    diagonal[size - 1:size] = 1.0
    return sliding_window_view(diagonal, size)[::-1] if size else np.zeros([0, 0], np.float32)
