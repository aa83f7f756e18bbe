"""Source factors: features of each source word, such as part of speech or lemma (Sennrich and Haddow, 2016).

In text, the factors of a word follow it: `Häuser|NOUN|Haus` has two. A word may contain `|`, a factor may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import clean
from towernmt.dataflow.vocabulary.base import Sampling, StoredWords, Vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

SEPARATOR = "|"
_SHOWN = 40  # characters of a word in a message


class FactorError(DataError):
    """A text in which a word lacks a factor.

    Attributes:
        index: of the text among those that were to be read, from 0.
        reason: without its place.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"line {index + 1}: {reason}")
        self.index, self.reason = index, reason

    def at(self, name: str, number: int) -> DataError:
        """The error with its place: `name` of the text, and the line `number`."""
        return DataError(f"{name} line {number}: {self.reason}")


def split_factors(text: str, count: int, index: int = 0) -> tuple[list[str], list[list[str]]]:
    """The words of a text, and for each of `count` factors as many values.

    Args:
        text: cleaned.
        index: for the error.
    Raises:
        FactorError: a word lacks a factor.
    """
    rows = [word.rsplit(SEPARATOR, count) for word in text.split()]
    for row in rows:
        if len(row) != count + 1 or "" in row:
            word = SEPARATOR.join(row)
            shown = word if len(word) <= _SHOWN else word[:_SHOWN] + "..."
            form = SEPARATOR.join(["word", *(f"factor{number + 1}" for number in range(count))])
            raise FactorError(index, f"'{shown}' has not the form {form}: write each word with its {count} source "
                                     "factor(s) behind it, none of them empty.")
    return [row[0] for row in rows], [[row[number + 1] for row in rows] for number in range(count)]


class FactoredTexts(NamedTuple):
    """Texts as ids.

    Attributes:
        ids: of each text, its pieces.
        factors: of each factor, of each text, the id of each piece's word.
        words: of each text, the number of each piece's word.
    """

    ids: list[list[int]]
    factors: list[list[list[int]]]
    words: list[list[int]]


class FactoredVocabulary(Vocabulary):
    """The vocabulary of source text with factors.

    A piece is a tuple of ids here: its own, then those of its word's factors. All else is as the vocabulary of the
    words has it.

    Args:
        words: of the pieces.
        factors: of the factors, one or more.
    Attributes:
        words, factors: the same.
    """

    def __init__(self, words: Vocabulary, factors: Sequence[WordVocabulary]) -> None:
        self.words, self.factors = words, list(factors)
        self.kind, self.size, self.streams = words.kind, words.size, 1 + len(self.factors)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[Any]]:
        """A list of tuples (piece, factor 1, ...) for each text in the form `word|factor1`.

        Raises:
            FactorError: a word lacks a factor.
        """
        return _rows(self.encode_texts(texts, threads))

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[Any]]:
        """See `Vocabulary.sample_batch` and `encode_batch`."""
        return _rows(self.sample_texts(texts, sampling, seed, first))

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[Any]], list[list[int]]]:
        """See `Vocabulary.encode_with_words` and `encode_batch`."""
        encoded = self.encode_texts(texts, threads)
        return _rows(encoded), encoded.words

    def stored_words(self, sampling: Sampling) -> StoredWords:
        """Of the pieces; their words' factors are the caller's concern."""
        return self.words.stored_words(sampling)

    @property
    def has_probabilities(self) -> bool:
        """Of the pieces."""
        return self.words.has_probabilities

    def plain_words(self, text: str) -> list[str]:
        """The words of a text without their factors.

        Raises:
            FactorError: a word lacks a factor.
        """
        return split_factors(clean(text), len(self.factors))[0]

    def encode_texts(self, texts: Sequence[str], threads: int = 1) -> FactoredTexts:
        """As `encode_batch`, in parts.

        Raises:
            FactorError: a word lacks a factor.
        """
        plain, values = self._split(texts)
        return self._joined(values, *self.words.encode_with_words(plain, threads))

    def sample_texts(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> FactoredTexts:
        """As `sample_batch`, in parts.

        Raises:
            FactorError: a word lacks a factor.
            SettingsError: this kind of vocabulary has only one segmentation of a text.
        """
        plain, values = self._split(texts)
        return self._joined(values, *self.words.sample_with_words(plain, sampling, seed, first))

    def _split(self, texts: Sequence[str]) -> tuple[list[str], list[list[list[str]]]]:
        """The texts without factors, and of each text, of each factor, the values of the words."""
        split = [split_factors(clean(text), len(self.factors), index) for index, text in enumerate(texts)]
        return [" ".join(words) for words, _ in split], [values for _, values in split]

    def _joined(self, values: list[list[list[str]]], ids: list[list[int]], words: list[list[int]]) -> FactoredTexts:
        factors = []
        for number, vocabulary in enumerate(self.factors):
            # Not by `piece_to_id`: a value that reads like a special piece, as `</s>`, is no end of the sentence.
            known = vocabulary.encode_batch([" ".join(text[number]) for text in values])
            factors.append([[text[word] for word in places] for text, places in zip(known, words, strict=True)])
        return FactoredTexts(ids, factors, words)

    def decode(self, ids: Iterable[Any]) -> str:
        """The text of pieces, which may be tuples as `encode_batch` gives them, without the factors."""
        return self.words.decode(id[0] if isinstance(id, tuple) else id for id in ids)

    def id_to_piece(self, id: int) -> str:
        return self.words.id_to_piece(id)

    def piece_to_id(self, piece: str) -> int:
        return self.words.piece_to_id(piece)

    def files(self) -> Mapping[str, bytes]:
        """Those of the words' vocabulary; `save_factors` writes the others."""
        return self.words.files()


def _rows(texts: FactoredTexts) -> list[list[Any]]:
    return [list(zip(*streams, strict=True)) for streams in zip(texts.ids, *texts.factors, strict=True)]


def factors_of(vocabulary: Vocabulary) -> list[WordVocabulary]:
    """The vocabularies of the factors of a source vocabulary; none, where it has none."""
    return vocabulary.factors if isinstance(vocabulary, FactoredVocabulary) else []


def factored(words: Vocabulary, factors: Sequence[WordVocabulary]) -> Vocabulary:
    """`words` with factors, or as it is where there are none."""
    return FactoredVocabulary(words, factors) if factors else words


def factor_file(number: int) -> str:
    """The file name of the word list of a factor, next to `source.*`; numbers are from 1."""
    return f"source_factor_{number}.words"
