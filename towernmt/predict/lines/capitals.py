"""Lines in capitals, in title case and in lower case, and the usual case of their words by the vocabulary of a model.

A vocabulary learns from the training text, so the usual form of a word has the fewest tokens, and of forms with one
token, the most frequent one has the smallest id: `USA` stays, German nouns keep their capital, other words do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from towernmt.dataflow.text.letter_case import capitalized, is_upper_case, lower_case
from towernmt.dataflow.vocabulary.base import Vocabulary

_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’](?=\w))*")
_SENTENCE_END = re.compile(r"[.!?…:]\W*\s\W*$")
_LEAST_LETTERS = 4
"""Minimum number of letters of a line of one word in capitals. Shorter words are often abbreviations."""
_LEAST_WORDS = 3
"""Minimum number of words of a line in title case. Fewer words may be a name."""


def is_in_capitals(texts: Sequence[str]) -> bool:
    """Return whether the texts of a line are in capitals: two words or more, or a word of four letters or more."""
    text = " ".join(texts)
    if not is_upper_case(text):
        return False
    words = [word for word in _WORD.findall(text) if len(word) > 1 or len(word.upper()) > 1]
    return len(words) > 1 or sum(map(str.isalpha, text)) >= _LEAST_LETTERS


def is_in_title_case(texts: Sequence[str]) -> bool:
    """Return whether each word of the texts of a line begins with a capital: three words or more."""
    words = [word for text in texts for word in _WORD.findall(text)]
    return len(words) >= _LEAST_WORDS and all(word[0].isupper() and word[1:] == word[1:].lower() for word in words)


def is_in_lower_case(texts: Sequence[str]) -> bool:
    """Return whether the letters of the texts of a line are in lower case."""
    return "".join(texts).islower()


def usual_forms(texts: Sequence[str], vocabulary: Vocabulary, language: str = "") -> dict[str, str]:
    """Return the words of the texts of a line, and the usual case of each.

    Args:
        texts: texts of a line.
        vocabulary: vocabulary of the source.
        language: ISO 639-1 code of the source, or "".
    """
    words = list(dict.fromkeys(word for text in texts for word in _WORD.findall(text)))
    forms = {word: list(dict.fromkeys((lower_case(word, language), _with_capital(word, language), word)))
             for word in words}
    tokens = {form: ids for form, ids in zip(
        [form for each in forms.values() for form in each],
        vocabulary.encode_batch([form for each in forms.values() for form in each]), strict=True)}
    return {word: min(each, key=lambda form: _rank(tokens[form], vocabulary.unk_id)) for word, each in forms.items()}


def usual_case(texts: Sequence[str], forms: Mapping[str, str], language: str = "") -> list[str]:
    """Return the texts of a line in the usual case of its words, with a capital at the beginning of each sentence.

    Args:
        texts: consecutive texts of a line; what is between them does not change.
        forms: the `usual_forms` of the words.
        language: ISO 639-1 code of the source, or "".
    """
    found: list[str] = []
    begins = True
    for text in texts:
        pieces, done = [], 0
        for match in _WORD.finditer(text):
            between = text[done:match.start()]
            begins = begins or bool(_SENTENCE_END.search(between))
            word = forms[match[0]]
            pieces += [between, capitalized(word, language) if begins else word]
            begins, done = False, match.end()
        begins = begins or bool(_SENTENCE_END.search(text[done:]))
        found.append("".join(pieces) + text[done:])
    return found


def _with_capital(word: str, language: str) -> str:
    return capitalized(lower_case(word, language), language)


def _rank(ids: Sequence[int], unknown: int) -> tuple[int, int, int]:
    """Return the order of the form of a word: the most usual one has the smallest value."""
    return list(ids).count(unknown), len(ids), ids[0] if len(ids) == 1 else 0
