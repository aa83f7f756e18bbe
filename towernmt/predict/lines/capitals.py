"""Lines in capitals, in title case and in lower case, and the usual case of their words.

The usual form of a word is the most frequent one in the training text: `USA` stays, German nouns keep their capital,
other words do not. The vocabulary decides about words that the training text lacks, and if the words of the training
text are unknown: it learns from that text, so the usual form has the fewest tokens, and of forms with one token, the
most frequent one has the smallest id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from towernmt.dataflow.text.letter_case import capitalized, is_upper_case, lower_case, upper_case, words_by_form
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_text import signs_at_end

_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’](?=\w))*")
_SENTENCE_END = re.compile(r"[.!?…:]")
_LEAST_LETTERS = 4
"""Minimum number of letters of a line of one word in capitals without `!` and `?`. Shorter words are often
abbreviations."""
_LEAST_WORDS = 3
"""Minimum number of words of a line in title case. Fewer words may be a name."""

_LEAST_EMPHASISED = 3
"""Minimum number of letters of a word in capitals in a line of other words. Shorter words are often abbreviations."""


def is_in_capitals(texts: Sequence[str]) -> bool:
    """Return whether the texts of a line are in capitals.

    It has two words or more, or a word of four letters or more, or a word before `!` or `?`, such as `NO!`.
    """
    text = " ".join(texts)
    if not is_upper_case(text):
        return False
    words = [word for word in _WORD.findall(text) if len(word) > 1 or len(word.upper()) > 1]
    is_call = not {"!", "?"}.isdisjoint(signs_at_end(text))
    return len(words) > 1 or sum(map(str.isalpha, text)) >= _LEAST_LETTERS or bool(words) and is_call


def is_in_title_case(texts: Sequence[str]) -> bool:
    """Return whether each word of the texts of a line begins with a capital: three words or more."""
    words = [word for text in texts for word in _WORD.findall(text)]
    return len(words) >= _LEAST_WORDS and all(word[0].isupper() and word[1:] == word[1:].lower() for word in words)


def may_have_emphasis(word: str) -> bool:
    """Return whether a word, with its marks, may be in capitals, or has capitals after other letters, as in `tHiS`."""
    return len(word) >= _LEAST_EMPHASISED and (word.isupper() or word[1:] != word[1:].lower())


def is_in_lower_case(texts: Sequence[str]) -> bool:
    """Return whether the letters of the texts of a line are in lower case."""
    return "".join(texts).islower()


class UsualForms:
    """The usual case of words.

    Args:
        words: words of the training text, the most frequent first; empty if they are unknown.
        vocabulary: vocabulary of the source.
        language: ISO 639-1 code of the source, or "".
    """

    def __init__(self, words: Sequence[str], vocabulary: Vocabulary, language: str = "") -> None:
        self._words, self._vocabulary, self._language = words, vocabulary, language

    @property
    def has_words(self) -> bool:
        """Whether the words of the training text are known."""
        return len(self._words) > 0

    def unreadable(self, words: Sequence[str]) -> list[str]:
        """Return the words that have unknown tokens in the vocabulary."""
        ids = self._vocabulary.encode_batch(list(words)) if words else []
        return [word for word, word_ids in zip(words, ids, strict=True) if self._vocabulary.unk_id in word_ids]

    def of(self, texts: Sequence[str]) -> dict[str, str]:
        """Return the words of the texts of a line, and the usual case of each."""
        words = _words_of(texts)
        known_forms = {word: form for word in words if (form := self.most_frequent_form(word)) is not None}
        return known_forms | self._by_vocabulary([word for word in words if word not in known_forms])

    def without_emphasis(self, texts: Sequence[str]) -> dict[str, str]:
        """Return the words of the texts of a line, those in capitals or in mixed case in their usual case.

        Words that the training text lacks, such as abbreviations and names, do not change.
        """
        return {word: (self.most_frequent_form(word) or word)
                if len(word) >= _LEAST_EMPHASISED and word[1:] != word[1:].lower() else word
                for word in _words_of(texts)}

    def most_frequent_form(self, word: str) -> str | None:
        """Return the most frequent form of a word in the training text, or None if that lacks the word.

        Capitals may be those of a word with other letters: `GROSS` is `groß`.
        """
        forms = self._forms.get(upper_case(word, self._language), ())
        if is_upper_case(word):
            return next(iter(forms), None)
        lower = lower_case(word, self._language)
        return next((form for form in forms if lower_case(form, self._language) == lower), None)

    @cached_property
    def _forms(self) -> dict[str, list[str]]:
        """Return the words of the training text by their form in capitals, the most frequent first."""
        return words_by_form(self._words, lambda word: upper_case(word, self._language))

    def _by_vocabulary(self, words: Sequence[str]) -> dict[str, str]:
        """Return the form of each word with the fewest tokens."""
        forms = {word: list(dict.fromkeys((lower_case(word, self._language), self._with_capital(word), word)))
                 for word in words}
        all_forms = [form for forms_of_word in forms.values() for form in forms_of_word]
        tokens = dict(zip(all_forms, self._vocabulary.encode_batch(all_forms), strict=True))
        return {word: min(forms_of_word, key=lambda form: _rank(tokens[form], self._vocabulary.unk_id))
                for word, forms_of_word in forms.items()}

    def _with_capital(self, word: str) -> str:
        return capitalized(lower_case(word, self._language), self._language)


def usual_case(texts: Sequence[str], forms: Mapping[str, str], language: str = "") -> list[str]:
    """Return the texts of a line in the usual case of its words, with a capital at the beginning of each sentence.

    Args:
        texts: consecutive texts of a line; what is between them does not change.
        forms: the usual case of each word; see `UsualForms`.
        language: ISO 639-1 code of the source, or "".
    """
    usual_texts: list[str] = []
    begins_sentence = True
    for text in texts:
        pieces, position = [], 0
        for match in _WORD.finditer(text):
            between = text[position:match.start()]
            begins_sentence = begins_sentence or _ends_sentence(between)
            word = forms[match[0]]
            pieces += [between, capitalized(word, language) if begins_sentence else word]
            begins_sentence, position = False, match.end()
        begins_sentence = begins_sentence or _ends_sentence(text[position:])
        usual_texts.append("".join(pieces) + text[position:])
    return usual_texts


def _ends_sentence(text: str) -> bool:
    """Return whether a final mark with a space after it is among the signs at the end of a text."""
    signs = signs_at_end(text)
    mark = _SENTENCE_END.search(signs)
    return mark is not None and any(map(str.isspace, signs[mark.end():]))


def _words_of(texts: Sequence[str]) -> list[str]:
    """Return the different words of the texts of a line."""
    return list(dict.fromkeys(word for text in texts for word in _WORD.findall(text)))


def _rank(ids: Sequence[int], unknown: int) -> tuple[int, int, int]:
    """Return the order of the form of a word: the most usual one has the smallest value."""
    return list(ids).count(unknown), len(ids), ids[0] if len(ids) == 1 else 0
