"""Score sentence pairs by any model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast, overload

import numpy as np

from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactorError

WINDOW = 10_000
"""Pairs that are read ahead and sorted by length."""


class PairScore(NamedTuple):
    """Probability of a translation.

    Attributes:
        log_prob: log p(target | source), in nats, EOS included.
        tokens: number of target tokens, EOS included.
        characters: number of target characters plus one for the end.
        pieces: target subwords, EOS last; None if not requested.
        log_probs: log-probability of each of `pieces`, log p(token | source, earlier tokens), in nats; None if not
            requested.
    """

    log_prob: float
    tokens: int
    characters: int
    pieces: tuple[str, ...] | None = None
    log_probs: tuple[float, ...] | None = None

    @property
    def mean(self) -> float:
        """Log-probability of a token, in nats."""
        return self.log_prob / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp(-`mean`)."""
        return token_perplexity(self.log_prob, self.tokens)

    @property
    def bits_per_character(self) -> float:
        """Bits per target character, which can be compared between vocabularies."""
        return bits_per_character(self.log_prob, self.characters)


def token_perplexity(log_prob: float, tokens: int) -> float:
    """Return the perplexity per token from the total log-probability in nats."""
    return math.exp(min(700.0, -log_prob / tokens))


def bits_per_character(log_prob: float, characters: int) -> float:
    """Return the information of a character in bits, from the log-probability of a text in nats."""
    return -log_prob / math.log(2) / characters


class PairScorer(ABC):
    """Scorer of sentence pairs.

    Args:
        source_vocabulary, target_vocabulary: vocabularies of the model.
        checkpoint: name of the model's checkpoint.
        batch_tokens: maximum tokens of the longer side in a batch, with padding (at least one pair).

    Attributes:
        max_length: maximum number of tokens of a sentence, EOS included; None if it is unlimited.

    Raises:
        SettingsError: an invalid value.
    """

    max_length: int | None = None

    def __init__(self, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, checkpoint: str,
                 batch_tokens: int) -> None:
        if batch_tokens < 1:
            raise SettingsError(f"batch_tokens={batch_tokens}: choose 1 or more.")
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary
        self.checkpoint, self._batch_tokens = checkpoint, batch_tokens

    @abstractmethod
    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        """Return the log-probability of each target and of its tokens (float32 `[tokens]`, EOS included).

        Args:
            sources: source ids without EOS.
            targets: target ids without EOS.
        """

    @overload
    def score(self, pairs: tuple[str, str], per_token: bool = False) -> PairScore: ...

    @overload
    def score(self, pairs: Iterable[tuple[str, str]], per_token: bool = False) -> list[PairScore]: ...

    def score(self, pairs: tuple[str, str] | Iterable[tuple[str, str]],
              per_token: bool = False) -> PairScore | list[PairScore]:
        """Return the score of each (source, target) pair, or of one: `score(("Hallo!", "Hello!"))`.

        Args:
            pairs: (source, target) pairs.
            per_token: whether to return `pieces` and `log_probs`.
        """
        if isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(side, str) for side in pairs):
            return next(self.score_stream([cast("tuple[str, str]", pairs)], per_token=per_token))
        return list(self.score_stream(cast("Iterable[tuple[str, str]]", pairs), per_token=per_token))

    def score_stream(self, pairs: Iterable[tuple[str, str]], name: str = "input",
                     per_token: bool = False) -> Iterator[PairScore]:
        """Yield the score of each pair, and read at most 10,000 pairs ahead.

        Args:
            pairs: (source, target) pairs.
            name: name of the source, for errors.
            per_token: whether to return `pieces` and `log_probs`.

        Raises:
            DataError: a source word lacks its factors.
            DivergenceError: the model's output is not a number.
            SettingsError: an item is not a pair, or the process was forked from that of the scorer.
        """
        remaining, first_line = iter(pairs), 1
        while window := list(islice(remaining, WINDOW)):
            _check_pairs(window)
            sources, targets = zip(*window, strict=True)
            try:
                source_ids = self.source_vocabulary.encode_batch(list(sources))
            except FactorError as error:
                raise error.at(name, first_line + error.index) from None
            target_ids = self.target_vocabulary.encode_batch(list(targets))
            scores = self.score_ids(source_ids, target_ids)
            if not all(math.isfinite(log_prob) for log_prob, _ in scores):
                raise DivergenceError(
                    f"{self.checkpoint}: the model's output is not a number (NaN), so nothing can be scored: training "
                    "has diverged; take an earlier checkpoint.")
            for text, ids, (log_prob, log_probs) in zip(targets, target_ids, scores, strict=True):
                yield PairScore(log_prob, len(ids) + 1, len(text) + 1, *(
                    (tuple(map(self.target_vocabulary.id_to_piece, [*ids, EOS])), tuple(map(float, log_probs)))
                    if per_token else ()))
            first_line += len(window)


def _check_pairs(pairs: Sequence[Any]) -> None:
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise SettingsError(f"{pair!r} is not a pair: score takes pairs (source, target).")


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of lengths in batches of similar lengths, each as large as `batch_tokens` allows."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[index] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
