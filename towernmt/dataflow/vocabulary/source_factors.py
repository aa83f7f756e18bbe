"""Source factors: features of each source word, such as part of speech or lemma (Sennrich and Haddow, 2016).

In text, the factors of a word follow it: `Häuser|NOUN|Haus` has two. A word may contain `|`, a factor may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import Sampling, StoredWords, Vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

SEPARATOR = "|"
_LONGEST_QUOTED = 40  # characters of a word in a message


class FactorError(DataError):
    """A text in which a word lacks a factor.

    Attributes:
        index: index of the text in the call that failed, from 0.
        reason: the message without its line.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"line {index + 1}: {reason}")
        self.index, self.reason = index, reason

    def at(self, name: str, number: int) -> DataError:
        """Return the error for the user, with the name of the text and the number of the line."""
        return DataError(f"{name} line {number}: {self.reason}")


def split_factors(text: str, count: int, index: int = 0) -> tuple[list[str], list[list[str]]]:
    """Return the words of a text, and for each factor its values, one for each word.

    Args:
        text: cleaned text.
        count: number of factors.
        index: index of the text, for the error.

    Raises:
        FactorError: a word lacks a factor.
    """
    rows = [word.rsplit(SEPARATOR, count) for word in text.split()]
    for row in rows:
        if len(row) != count + 1 or "" in row:
            word = SEPARATOR.join(row)
            shortened = word if len(word) <= _LONGEST_QUOTED else word[:_LONGEST_QUOTED] + "..."
            form = SEPARATOR.join(["word", *(f"factor{number + 1}" for number in range(count))])
            raise FactorError(index, f"'{shortened}' does not have the form {form}. Write each word with its {count} "
                                     "source factor(s) after it, none of them empty.")
    return [row[0] for row in rows], [[row[number + 1] for row in rows] for number in range(count)]


class FactoredTexts(NamedTuple):
    """Encoded texts with factors.

    Attributes:
        ids: ids of each text.
        factors: for each factor, for each text: the factor's id of each subword.
        words: for each text: the index of each subword's word.
    """

    ids: list[list[int]]
    factors: list[list[list[int]]]
    words: list[list[int]]


class FactoredVocabulary(Vocabulary):
    """The vocabulary of source text with factors.

    A subword is encoded as a tuple of ids: its id, then the ids of its word's factors. The other methods are those of
    the vocabulary of the words.

    Args:
        words: vocabulary of the words.
        factors: one or more vocabularies of factors.

    Attributes:
        words, factors: see Args.
    """

    def __init__(self, words: Vocabulary, factors: Sequence[WordVocabulary]) -> None:
        self.words, self.factors = words, list(factors)
        self.kind, self.size, self.streams = words.kind, words.size, 1 + len(self.factors)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[Any]]:
        """Return a list of tuples (id of the subword, id of factor 1, ...) for each text in the form `word|factor1`.

        Raises:
            FactorError: a word lacks a factor.
        """
        return _rows(self.encode_texts(texts, threads))

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[Any]]:
        """Return tuples as `encode_batch`, of a sampled segmentation; see `Vocabulary.sample_batch`."""
        return _rows(self.sample_texts(texts, sampling, seed, first))

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[Any]], list[list[int]]]:
        """Return tuples as `encode_batch`, and the words of the subwords; see `Vocabulary.encode_with_words`."""
        encoded = self.encode_texts(texts, threads)
        return _rows(encoded), encoded.words

    def stored_words(self, sampling: Sampling) -> StoredWords:
        """Return the finder of words in the ids of subwords, without factors."""
        return self.words.stored_words(sampling)

    @property
    def has_probabilities(self) -> bool:
        """Whether the subwords have probabilities; see `Vocabulary.has_probabilities`."""
        return self.words.has_probabilities

    def plain_words(self, text: str) -> list[str]:
        """Return the words of a text without their factors.

        Raises:
            FactorError: a word lacks a factor.
        """
        return split_factors(clean(text), len(self.factors))[0]

    def encode_texts(self, texts: Sequence[str], threads: int = 1) -> FactoredTexts:
        """Encode texts as `encode_batch` does, but return ids, factors and words separately.

        Raises:
            FactorError: a word lacks a factor.
        """
        plain, values = self._split(texts)
        return self._with_factors(values, *self.words.encode_with_words(plain, threads))

    def sample_texts(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> FactoredTexts:
        """Sample texts as `sample_batch` does, but return ids, factors and words separately.

        Raises:
            FactorError: a word lacks a factor.
            SettingsError: this kind of vocabulary has only one segmentation of a text.
        """
        plain, values = self._split(texts)
        return self._with_factors(values, *self.words.sample_with_words(plain, sampling, seed, first))

    def _split(self, texts: Sequence[str]) -> tuple[list[str], list[list[list[str]]]]:
        """Return the texts without factors, and for each text, for each factor: the values of the words."""
        split = [split_factors(clean(text), len(self.factors), index) for index, text in enumerate(texts)]
        return [" ".join(words) for words, _ in split], [values for _, values in split]

    def _with_factors(self, values: list[list[list[str]]], ids: list[list[int]], words: list[list[int]]
                      ) -> FactoredTexts:
        factors = []
        for number, vocabulary in enumerate(self.factors):
            # Without `piece_to_id`: a value that is written like a special piece, such as `</s>`, is not that piece.
            value_ids = vocabulary.encode_batch([" ".join(text[number]) for text in values])
            factors.append([[text[word] for word in indices] for text, indices in zip(value_ids, words, strict=True)])
        return FactoredTexts(ids, factors, words)

    def decode(self, ids: Iterable[Any]) -> str:
        """Return the text without factors. The ids may be tuples, as `encode_batch` returns them."""
        return self.words.decode(id[0] if isinstance(id, tuple) else id for id in ids)

    def id_to_piece(self, id: int) -> str:
        return self.words.id_to_piece(id)

    def piece_to_id(self, piece: str) -> int:
        return self.words.piece_to_id(piece)

    def files(self) -> Mapping[str, bytes]:
        """Return the files of the vocabulary of the words. `save_factors` writes the vocabularies of the factors."""
        return self.words.files()


def _rows(texts: FactoredTexts) -> list[list[Any]]:
    return [list(zip(*streams, strict=True)) for streams in zip(texts.ids, *texts.factors, strict=True)]


def factors_of(vocabulary: Vocabulary) -> list[WordVocabulary]:
    """Return the vocabularies of the factors of a source vocabulary; empty if it has no factors."""
    return vocabulary.factors if isinstance(vocabulary, FactoredVocabulary) else []


def add_factors(words: Vocabulary, factors: Sequence[WordVocabulary]) -> Vocabulary:
    """Return a vocabulary with the factors, or `words` itself if `factors` is empty."""
    return FactoredVocabulary(words, factors) if factors else words


def factor_file(number: int) -> str:
    """Return the name of the word list of a factor, next to `source.*`; factors are numbered from 1."""
    return f"source_factor_{number}.words"
