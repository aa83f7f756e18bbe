"""The interface of all vocabularies: text to integer ids and back.

The ids of the special tokens are always the same. The kinds of vocabularies are `word_vocabulary`, `bpe_codes` and
`sentencepiece_vocabulary`; `vocabulary_files` loads and saves them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import replacing
from towernmt.dataflow.text.clean_text import clean

PAD = 0
"""Id of padding."""
BOS = 1
"""Id of the beginning of a sentence."""
EOS = 2
"""Id of the end of a sentence."""
UNK = 3
"""Id of an unknown token."""
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
MIN_SIZE, MAX_SIZE = len(SPECIAL_PIECES) + 1, 10_000_000
"""Smallest and largest number of ids of a learned vocabulary. SentencePiece cannot parse numbers above 2 ** 31."""
SUFFIXES = (".model", ".codes", ".words")
"""The suffix of the main file of each kind of vocabulary."""


@dataclass(frozen=True)
class Sampling:
    """Settings of sampled segmentations (Kudo, 2018, arXiv:1804.10959; Provilkov et al., 2020, arXiv:1910.13267).

    Attributes:
        alpha: unigram: exponent of the probabilities; 0 samples uniformly, larger values favour the best segmentation.
            BPE: probability of leaving out a merge, 0 to 1.
        nbest: unigram: sample among this number of best segmentations; -1 for all.
    """

    alpha: float = 0.1
    nbest: int = -1


class WordSampler(Protocol):
    """A sampler of segmentations of many words at once. Not for several threads at once."""

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the cached words in bytes."""

    def add(self, word: str) -> int | None:
        """Return the number of a word, or None if it has to keep its segmentation."""

    def uniforms_per_word(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 `[words]`: maximum number of random numbers that a sample of each word takes."""

    def draw(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
             ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Sample a segmentation of each word.

        Args:
            numbers: int64 `[words]`, results of `add`.
            uniform: random numbers, from 0 to below 1.
            first: int64 `[words]`: index in `uniform` of the first random number of each word.

        Returns:
            (concatenated ids of all words, int64 `[words]`: number of ids of each word, 0 if the word has to keep its
            segmentation).
        """


class StoredWords(Protocol):
    """The words of sentences that are stored as ids, for segmenting them again.

    A word is here a unit that no subword crosses: text between white space, or a part of it.

    Attributes:
        size: size of the vocabulary.
        within_words: whether no word contains white space, since no subword contains it.
    """

    size: int
    within_words: bool

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return bool `[tokens]`: whether a word begins with each id, apart from beginnings of sentences."""

    def text(self, ids: Sequence[int]) -> str | None:
        """Return the text of a word's ids, or None if it is unknown or has only one segmentation."""

    def sampler(self) -> WordSampler:
        """Return a new sampler of segmentations, without words."""


class Vocabulary(ABC):
    """Text to ids and back. Ids 0 to 3 are PAD, BOS, EOS and UNK; `encode` adds neither BOS nor EOS.

    Attributes:
        kind: "sentencepiece", "bpe-codes" or "word".
        size: number of ids, including special ones.
        streams: number of ids of a subword: 1, or 1 + the number of factors of a `FactoredVocabulary`.
    """

    kind: str
    size: int
    unk_id: int = UNK
    streams: int = 1

    def encode(self, text: str) -> list[int]:
        """Return the ids of any text, which is cleaned first (see `towernmt.dataflow.text.clean_text.clean`)."""
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return the ids of many texts, faster than one by one. Some kinds of vocabularies use several threads."""

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[int]]:
        """Sample a segmentation of each text, as a function of the text, its number and the seed alone.

        So a sample depends neither on the process nor on the other texts of a call.

        Args:
            texts: texts, which are cleaned first, as by `encode`.
            sampling: strength of the sampling.
            seed: seed of the samples, from 0.
            first: number of the first text, from 0; the others follow.

        Raises:
            SettingsError: this kind of vocabulary has only one segmentation of a text.
        """
        raise self._one_segmentation()

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of `encode_batch`, and for each subword the index of its word in the text.

        Words are separated by white space. A subword that spans several words belongs to the first. Here each word is
        encoded by itself, for vocabularies whose subwords never span several words.
        """
        return self._word_by_word(texts, lambda words: self.encode_batch(words, threads))

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0
                          ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of `sample_batch`, and the words of the subwords as `encode_with_words` does."""
        raise self._one_segmentation()

    def stored_words(self, sampling: Sampling) -> StoredWords:
        """Return the finder of words in stored ids, with which they are segmented again.

        Args:
            sampling: strength of the sampling; without `nbest`.

        Raises:
            SettingsError: this kind of vocabulary has only one segmentation of a text.
        """
        raise self._one_segmentation()

    @property
    def has_probabilities(self) -> bool:
        """Whether subwords have probabilities, as in a unigram model, for sampling segmentations."""
        return False

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the detokenised text of ids up to the first EOS, without PAD and BOS.

        Raises:
            DataError: an id is negative or not below `size`.
        """

    @abstractmethod
    def id_to_piece(self, id: int) -> str:
        """Return the written form of an id."""

    @abstractmethod
    def piece_to_id(self, piece: str) -> int:
        """Return the id of a subword, or UNK if it is unknown."""

    def is_unused(self, id: int) -> bool:
        """Return whether the vocabulary marks a subword as unused: it has an id, but no text is divided into it."""
        return False

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Return the content of the vocabulary's files by suffix, the main file first."""

    def save(self, prefix: str | Path) -> list[Path]:
        """Write the files `PREFIX.SUFFIX`, each by an atomic replacement. Return the paths, the main file first."""
        paths = []
        for suffix, content in self.files().items():
            path = Path(f"{prefix}{suffix}")
            with replacing(path) as file:
                file.write(content)
            paths.append(path)
        return paths

    def __len__(self) -> int:
        return self.size

    def _one_segmentation(self) -> SettingsError:
        return SettingsError(f"data.subword_sampling=true needs a SentencePiece or BPE vocabulary, but a {self.kind} "
                             "vocabulary has only one segmentation of a text. Set it to false.")

    @staticmethod
    def _word_by_word(texts: Sequence[str], encode: Callable[[list[str]], list[list[int]]]
                      ) -> tuple[list[list[int]], list[list[int]]]:
        split = [clean(text).split() for text in texts]
        encoded_words = iter(encode([word for words in split for word in words]))
        lines = [list(islice(encoded_words, len(words))) for words in split]
        return ([[id for ids in line for id in ids] for line in lines],
                [[word for word, ids in enumerate(line) for _ in ids] for line in lines])

    def _sentence_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the ids of text: those before EOS, without PAD and BOS."""
        size, text_ids = self.size, []
        for id in map(int, ids):
            if id == EOS:
                break
            if not 0 <= id < size:
                raise DataError(f"Id {id} is not in this vocabulary, which has {size} ids. Use the vocabulary with "
                                "which the model was trained.")
            if id not in (PAD, BOS):
                text_ids.append(id)
        return text_ids
