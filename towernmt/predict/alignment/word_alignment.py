"""The words of a sentence pair, and how much each word of the target looks at each of the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towernmt.dataflow.text.alignment import Link
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import FactoredVocabulary
from towernmt.predict.alignment.links import links_of, pharaoh
from towernmt.predict.alignment.words import word_weights, words_of_source


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """What a model saw when it wrote, or read, a translation.

    Attributes:
        source, target: the words, which are what stands between white space.
        weights: float32 `[target words, source words]`, the attention; see `word_weights`.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray

    def links(self, threshold: float | None = None) -> list[Link]:
        """The links of the words; see `links_of`."""
        return links_of(self.weights, threshold)

    def pharaoh(self, threshold: float | None = None) -> str:
        """The links as text: `0-0 1-2`."""
        return pharaoh(self.links(threshold))

    def as_json(self) -> dict[str, Any]:
        """The words of both sides, and the weights with 4 digits: for each target word those of the source words."""
        weights = [[round(weight, 4) for weight in row] for row in self.weights.tolist()]
        return {"source": self.source, "target": self.target, "weights": weights}


def words_of_line(vocabulary: Vocabulary, line: str) -> list[str]:
    """The words of a line, without their factors if the vocabulary has some."""
    return vocabulary.plain_words(line) if isinstance(vocabulary, FactoredVocabulary) else clean(line).split()


@dataclass(frozen=True)
class SourceWords:
    """The words of a line to be translated.

    Attributes:
        words: without their factors.
        of_tokens: the number of each token's word; see `words_of_source`.
    """

    words: list[str]
    of_tokens: list[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary, line: str, limit: int) -> SourceWords:
        """Those of a line that was translated in pieces of at most `limit` tokens."""
        return cls(words_of_line(vocabulary, line), words_of_source(vocabulary, line, limit))

    def aligned(self, target: str, target_words: Sequence[int], attention: np.ndarray) -> WordAlignment:
        """Align them to the words of a text.

        Args:
            target: the text.
            target_words: the word of each of its tokens.
            attention: float32 `[target tokens, source tokens]`.
        """
        words = target.split()
        return WordAlignment(self.words, words, word_weights(
            attention, self.of_tokens, target_words, (len(self.words), len(words))))
