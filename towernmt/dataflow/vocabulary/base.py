"""The interface of all vocabularies: text to integer ids and back. The ids of the special tokens are always the same.

Kinds are `towernmt.dataflow.vocabulary.words` and the modules of `subword`; `vocabulary_files` loads and saves them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import replacing
from towernmt.dataflow.text.cleaning import clean

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
SUFFIXES = (".model", ".codes", ".words")
"""The suffix of the main file of each kind of vocabulary."""


@dataclass(frozen=True)
class Sampling:
    """How segmentations are drawn (Kudo, 2018, arXiv:1804.10959; Provilkov et al., 2020, arXiv:1910.13267).

    Attributes:
        alpha: unigram: exponent of the probabilities, 0 draws evenly and more keeps to the best; BPE: the share of
            merges that is left out, 0 to 1.
        nbest: unigram: draw among so many best segmentations; -1 for among all.
    """

    alpha: float = 0.1
    nbest: int = -1


class WordDraws(Protocol):
    """Draws segmentations of words, of very many at once. Not for several threads at once."""

    @property
    def held_bytes(self) -> int:
        """How much memory what is kept of the words takes, about."""

    def add(self, word: str) -> int | None:
        """The number of a word; None where it is to keep its segmentation."""

    def takes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 `[words]`: how many random numbers a draw of each word takes at most."""

    def draw(self, numbers: NDArray[np.int64], uniform: NDArray[np.float64], first: NDArray[np.int64]
             ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """A segmentation of each word.

        Args:
            numbers: int64 `[words]`, as `add` gave them.
            uniform: random numbers, from 0 to below 1.
            first: int64 `[words]`: where those of each word begin in `uniform`.
        Returns:
            (ids of all words one after another, int64 `[words]`: how many each has; none: it is to keep its
            segmentation).
        """


class StoredWords(Protocol):
    """The words of sentences that are stored as ids, for segmenting them anew.

    A word is here what no piece crosses: one between white space, or a part of such a word.

    Attributes:
        size: of the vocabulary.
        within_words: whether they lie within what stands between white space, as no piece has white space inside.
    """

    size: int
    within_words: bool

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """bool `[tokens]`: whether a word begins with each id, if not for the beginning of a sentence."""

    def text(self, ids: Sequence[int]) -> str | None:
        """What the ids of a word spell; None where they do not tell, or where there is nothing to draw."""

    def draws(self) -> WordDraws:
        """Draws segmentations of these texts; each call gives a new one, without words."""


class Vocabulary(ABC):
    """Text to ids and back. Ids 0 to 3 are PAD, BOS, EOS and UNK; `encode` adds neither BOS nor EOS.

    Attributes:
        kind: "sentencepiece", "bpe-codes" or "word".
        size: number of ids, special ones included.
        streams: ids of a piece: 1, and 1 + the number of factors of a `FactoredVocabulary`.
    """

    kind: str
    size: int
    unk_id: int = UNK
    streams: int = 1

    def encode(self, text: str) -> list[int]:
        """The ids of a text (cleaned first, see `towernmt.dataflow.text.cleaning.clean`); any text will do."""
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The ids of many texts; faster than one by one. Kinds that can, use several threads."""

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[int]]:
        """A segmentation of each text drawn at random: a function of the text, its number and the seed alone.

        So it is the same in each process, and whatever other texts are drawn for in one call.

        Args:
            texts: cleaned first, as by `encode`.
            sampling: how far from the best segmentation.
            seed: of the draws, from 0.
            first: number of the first text, from 0; the others follow.
        Raises:
            SettingsError: this kind of vocabulary has only one segmentation of a text.
        """
        raise self._one_segmentation()

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[int]], list[list[int]]]:
        """As `encode_batch`, and for each piece the number of its word, from 0: of a piece of several, the first's.

        Words are what stands between white space. Here each is encoded alone, for kinds whose pieces never hold more.
        """
        return self._word_by_word(texts, lambda words: self.encode_batch(words, threads))

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0
                          ) -> tuple[list[list[int]], list[list[int]]]:
        """As `sample_batch`, with the words of the pieces as `encode_with_words` has them."""
        raise self._one_segmentation()

    def stored_words(self, sampling: Sampling) -> StoredWords:
        """What segments anew what is stored as ids of the best segmentation.

        Args:
            sampling: how far from the best segmentation; without `nbest`.
        Raises:
            SettingsError: this kind of vocabulary has only one segmentation of a text.
        """
        raise self._one_segmentation()

    @property
    def has_probabilities(self) -> bool:
        """Whether its pieces have probabilities, as those of a unigram model, for segmentations to be drawn by."""
        return False

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Detokenised text: stops before the first EOS; PAD and BOS are skipped.

        Raises:
            DataError: an id is negative or not below `size`.
        """

    @abstractmethod
    def id_to_piece(self, id: int) -> str:
        """The written form of an id."""

    @abstractmethod
    def piece_to_id(self, piece: str) -> int:
        """The id of a piece; UNK if there is no such piece."""

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Suffix to content of the files that hold this vocabulary; the main file first."""

    def save(self, prefix: str | Path) -> list[Path]:
        """Write the files `PREFIX.SUFFIX`; each is replaced whole. Returns the paths, the main file first."""
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
                             "vocabulary has only one segmentation of a text: leave it false.")

    @staticmethod
    def _word_by_word(texts: Sequence[str], encode: Callable[[list[str]], list[list[int]]]
                      ) -> tuple[list[list[int]], list[list[int]]]:
        split = [clean(text).split() for text in texts]
        pieces = iter(encode([word for words in split for word in words]))
        parts = [list(islice(pieces, len(words))) for words in split]
        return ([[id for part in line for id in part] for line in parts],
                [[word for word, part in enumerate(line) for _ in part] for line in parts])

    def _sentence_ids(self, ids: Iterable[int]) -> Iterator[int]:
        """The ids that stand for text: those before EOS, without PAD and BOS."""
        for id in ids:
            id = int(id)
            if id == EOS:
                return
            if not 0 <= id < self.size:
                raise DataError(f"id {id} is not in this vocabulary of {self.size}: is it the vocabulary "
                                "that the model was trained with?")
            if id not in (PAD, BOS):
                yield id
