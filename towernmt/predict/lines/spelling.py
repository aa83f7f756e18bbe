"""Corrections of typos by the words of the training text.

A word that the training text lacks is replaced by the most probable word at a distance of one typo (Damerau 1964: a
letter that is missing, added, replaced, or exchanged with the next one), by a noisy channel (Kernighan et al. 1990, "A
spelling correction program based on a noisy channel model"). Whether the correction is right is decided by the model,
which translates the line with and without it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, product

from towernmt.dataflow.text.letter_case import capitalized, lower_case, words_by_form
from towernmt.dataflow.text.modifiers import neighbouring_keys, without_accents
from towernmt.dataflow.vocabulary.source_text import signs_at_end, words_of

_LEAST_LETTERS = 2
"""Minimum number of letters of a word that is corrected."""
_LEAST_FOREIGN_WORDS = 3
"""Minimum number of words of a line in another language."""
_FIRST_RANK = 100
"""Words of a smaller rank count as equally frequent."""
_RARE_TYPO = 3.0
"""Cost in nats of a letter that is replaced by a distant key, or added without being a repetition."""
_OTHER_CASE = 4.0
"""Cost in nats of a correction whose first letter has another case."""
_MOST_COST = 11.0
"""Maximum cost in nats of a correction. More improbable ones, such as a rare word with another case, are usually wrong:
the typed word is a rare word without a typo (docs/notes/translation-speed.md)."""
_LONGEST_ABBREVIATION = 4
"""Maximum number of letters of an unknown word before a full stop in a line that is not corrected."""
_MOST_RUNS = 4
"""Maximum number of letters of a word that are repeated for emphasis."""
_RUN = re.compile(r"([^\W\d_])\1{2,}")
_ASCII = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "å": "aa", "ø": "oe", "æ": "ae", "œ": "oe"})
_NO_SPACE = re.compile(r"(?<=[^\W\d_]{2})(?:[,;!?]+(?=[^\W\d_])|(?<=[a-zß-ÿ]{2})[.:…]+(?=[^\W\d_a-zß-ÿ]\w))")
_BEFORE_SENTENCE = frozenset(".!?…:\"„“”«»¿¡")
"""Signs before the first word of a sentence."""
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_CACHED_WORDS = 10_000


class TypoCorrector:
    """Finds words that the training text lacks, and corrects them.

    Args:
        words: words of the training text, the most frequent first.
        language: ISO 639-1 code, for the letter case and the keyboard, or "".
    """

    def __init__(self, words: Sequence[str], language: str = "") -> None:
        self._ranks = dict(zip(words, range(len(words)), strict=True))
        self._language = language
        self._cached_correction = lru_cache(_CACHED_WORDS)(self._best_correction)

    def has_unknown(self, text: str) -> bool:
        """Return whether a word of a text may have a typo."""
        return bool(self._ranks) and any(self._may_have_typo(match[0]) for match in words_of(text))

    def is_foreign(self, texts: Iterable[str]) -> bool:
        """Return whether the texts of a line have several words, all of which the training text lacks."""
        words = [match[0] for text in texts for match in words_of(text)]
        return bool(self._ranks) and len(words) >= _LEAST_FOREIGN_WORDS and not any(map(self._is_known, words))

    def corrected(self, text: str, excluded_phrases: Collection[str] = ()) -> str:
        """Return a text with its typos corrected.

        Args:
            text: text of a line.
            excluded_phrases: phrases whose words are not corrected.
        """
        excluded_words = {match[0] for phrase in excluded_phrases for match in words_of(phrase)}
        pieces, position, end_of_last_word = [], 0, 0
        for match in words_of(text):
            word = match[0]
            if word not in excluded_words and self._may_have_typo(word) and not _is_abbreviation(match):
                begins_sentence = _begins_sentence(text[end_of_last_word:match.start()], end_of_last_word == 0)
                pieces += [text[position:match.start()], self._cached_correction(word, begins_sentence)]
                position = match.end()
            end_of_last_word = match.end()
        return "".join(pieces) + text[position:]

    def _may_have_typo(self, word: str) -> bool:
        """Return whether the training text lacks a word that looks neither like an abbreviation nor like `McDonald`."""
        return (word not in self._ranks and len(word) >= _LEAST_LETTERS
                and word[1:] == lower_case(word, self._language)[1:] and not self._is_known(word))

    def _is_known(self, word: str) -> bool:
        """Return whether the training text has a word, in its letter case, in lower case or with a capital."""
        if word in self._ranks:
            return True
        lower = lower_case(word, self._language)
        return lower in self._ranks or capitalized(lower, self._language) in self._ranks

    def _best_correction(self, word: str, begins_sentence: bool) -> str:
        """Return the most probable word of the training text for a typed one, or the same word if none is probable.

        Args:
            word: a word that may have a typo.
            begins_sentence: whether a sentence begins with it, so that any word may have a capital.
        """
        lower, costs = lower_case(word, self._language), defaultdict[str, float](lambda: math.inf)
        other_spellings = ((form, 0.0) for form in self._other_spellings(lower))
        for form, cost in chain(other_spellings, self._edits(lower)):
            for known_word in self._forms.get(form, ()):
                correction, cost_of_case = known_word, 0.0
                if known_word[0].isupper() != word[0].isupper():
                    if begins_sentence and word[0].isupper():
                        correction = capitalized(known_word, self._language)
                    else:
                        cost_of_case = _OTHER_CASE
                total = math.log(self._ranks[known_word] + _FIRST_RANK) + cost + cost_of_case
                if total <= _MOST_COST:
                    costs[correction] = min(total, costs[correction])
        return min(costs, key=lambda correction: (costs[correction], correction), default=word)

    def _other_spellings(self, word: str) -> Iterator[str]:
        """Yield the words that a word is typed for without keys for accents, or with repeated letters for emphasis."""
        runs = list(_RUN.finditer(word))[:_MOST_RUNS]
        for counts in product((1, 2), repeat=len(runs)):
            form = word
            for match, count in zip(reversed(runs), counts, strict=True):
                form = form[:match.start()] + match[1] * count + form[match.end():]
            yield form
            yield from self._typed_in_ascii.get(form, ())

    def _edits(self, word: str) -> Iterator[tuple[str, float]]:
        """Yield the words of the training text at a distance of one typo, each with the cost of the typo in nats."""
        half = len(word) // 2
        for count in (len(word) - 1, len(word), len(word) + 1):
            # A typo changes the first half, or the rest. The first letter of the second half may be exchanged with the
            # last one of the first half.
            candidates = {*self._beginnings.of(word[:half], count),
                          *(form[::-1] for form in self._endings.of(word[:half:-1], count))}
            for form in candidates:
                cost = self._cost_of_typo(word, form)
                if cost is not None:
                    yield form, cost

    def _cost_of_typo(self, word: str, form: str) -> float | None:
        """Return the cost in nats of the single typo that turns the intended word into the typed one.

        Args:
            word: the typed word.
            form: the intended word.

        Returns:
            The cost, or None if the words differ by several typos.
        """
        start = next((index for index, letters in enumerate(zip(word, form, strict=False)) if letters[0] != letters[1]),
                     min(len(word), len(form)))
        after, form_after = word[start:], form[start:]
        if len(word) > len(form) and after[1:] == form_after:
            return 0.0 if after[0] in (word[:start][-1:], after[1:2]) else _RARE_TYPO
        if len(word) < len(form) and after == form_after[1:]:
            return 0.0
        if len(word) == len(form) and after[2:] == form_after[2:] and after[1::-1] == form_after[:2]:
            return 0.0
        if len(word) == len(form) and after[1:] == form_after[1:]:
            return 0.0 if form_after[0] in neighbouring_keys(after[0], self._language) else _RARE_TYPO
        return None

    @cached_property
    def _beginnings(self) -> _WordsByBeginning:
        """Return the words of the training text in lower case."""
        return _WordsByBeginning(self._forms)

    @cached_property
    def _endings(self) -> _WordsByBeginning:
        """Return the same words with their letters in reverse."""
        return _WordsByBeginning(form[::-1] for form in self._forms)

    @cached_property
    def _forms(self) -> dict[str, list[str]]:
        """Return the words of the training text by their form in lower case."""
        return words_by_form(self._ranks, lambda word: lower_case(word, self._language))

    @cached_property
    def _typed_in_ascii(self) -> dict[str, list[str]]:
        """Return the words with accents by their forms without accents, and by those with two letters for an umlaut."""
        words_by_ascii: dict[str, list[str]] = {}
        for word in self._forms:
            if not word.isascii():
                for form in {without_accents(word), word.translate(_ASCII)} - {word}:
                    words_by_ascii.setdefault(form, []).append(word)
        return words_by_ascii


class _WordsByBeginning:
    """Words of a length that begin with some letters, found by bisection.

    Args:
        words: the words.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._by_length: dict[int, list[str]] = {}
        for word in sorted(words):
            self._by_length.setdefault(len(word), []).append(word)

    def of(self, beginning: str, length: int) -> list[str]:
        """Return the words of a length with a beginning."""
        words = self._by_length.get(length, [])
        start = bisect_left(words, beginning)
        return words[start:bisect_right(words, beginning, start, key=lambda word: word[:len(beginning)])]


def _begins_sentence(between: str, is_first: bool) -> bool:
    """Return whether a sentence begins with a word.

    Args:
        between: text between the previous word and this one.
        is_first: whether this is the first word of the text.
    """
    signs = signs_at_end(between)
    return is_first and signs == between or not _BEFORE_SENTENCE.isdisjoint(signs)


def _is_abbreviation(word: re.Match[str]) -> bool:
    """Return whether an unknown word of a text may be an abbreviation with a full stop, such as `Nr. 5`."""
    text, end = word.string, word.end()
    return (len(word[0]) <= _LONGEST_ABBREVIATION and text.startswith(".", end)
            and _LETTER_OR_DIGIT.search(text, end) is not None)


def with_spaces(text: str) -> str:
    """Return a text with a space after each mark that joins two words, as in `Ja,ich`."""
    return _NO_SPACE.sub(lambda match: match[0] + " ", text)
