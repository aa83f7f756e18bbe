"""The probability that a trained run gives to translations: `Scorer("runs/de-en").score([("Hallo!", "Hello!")])`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast, overload

import numpy as np

from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.order.padding import pad_sentences
from towernmt.dataflow.vocabulary.base import EOS
from towernmt.dataflow.vocabulary.factored import FactorError
from towernmt.models.interface import NMTModel
from towernmt.models.losses.likelihood import token_log_probabilities
from towernmt.predict.trained_model import TrainedModel

WINDOW = 10_000
"""Pairs that are read ahead and sorted by length."""


class PairScore(NamedTuple):
    """How probable a translation is.

    Attributes:
        log_prob: log p(target | source), in nats, EOS included.
        tokens: target tokens, EOS counted.
        characters: of the target, its end counted as one.
        pieces: the target tokens, EOS last; None where they were not asked for.
        log_probs: of each of `pieces`: log p(token | source, tokens before it), in nats; None where they were not
            asked for.
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
        """Of a token: e to the power of `-mean`."""
        return perplexity(self.log_prob, self.tokens)

    @property
    def bits_per_character(self) -> float:
        """What a character of the target takes to be told, in bits; comparable between vocabularies."""
        return bits_per_character(self.log_prob, self.characters)


def perplexity(log_prob: float, tokens: int) -> float:
    """Of a token, from the log-probability of all, in nats."""
    return math.exp(min(700.0, -log_prob / tokens))


def bits_per_character(log_prob: float, characters: int) -> float:
    """The information of a character, from the log-probability of all, in nats."""
    return -log_prob / math.log(2) / characters


class Scorer:
    """Scores sentence pairs by teacher forcing with a checkpoint of a training run.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix).
        source_vocabulary, target_vocabulary: the run's vocabularies.
    """

    def __init__(self, run_dir: str | Path, checkpoint: str | None = None, *, device: str | None = None,
                 averaged: bool = True, batch_tokens: int = 4096, model: Any = None) -> None:
        """
        Args:
            run_dir: the training run's directory (its --logdir).
            checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the best by
                validation BLEU, or the last of a run without validation.
            device: "cpu", "gpu" or "gpu:N"; by default a GPU if there is one.
            averaged: with the moving average of the weights, where the run keeps one.
            batch_tokens: tokens of the longer side in a batch, padding included, at most (one pair at least).
            model: the `NMTModel` of the run, or its class, where the run does not hold its code.
        Raises:
            CheckpointError: there is no such checkpoint, or it does not fit the run's settings.
            SettingsError: a value that cannot work, no run, or a GPU that is not there.
        """
        if batch_tokens < 1:
            raise SettingsError(f"batch_tokens={batch_tokens}: choose 1 or more.")
        self._batch_tokens = batch_tokens
        with TrainedModel(run_dir, checkpoint, device=device, averaged=averaged, model=model) as trained:
            self.checkpoint = trained.checkpoint
            self.source_vocabulary, self.target_vocabulary = trained.source_vocabulary, trained.target_vocabulary
            self._predictor = trained.predictor(
                _scoring_tower(trained.model), trained.model.inputs()[:4], ["log_prob", "token_log_probs"])

    @overload
    def score(self, pairs: tuple[str, str], per_token: bool = False) -> PairScore: ...

    @overload
    def score(self, pairs: Iterable[tuple[str, str]], per_token: bool = False) -> list[PairScore]: ...

    def score(self, pairs: tuple[str, str] | Iterable[tuple[str, str]],
              per_token: bool = False) -> PairScore | list[PairScore]:
        """The score of each (source, target), or of one: `score(("Hallo!", "Hello!"))`.

        Args:
            per_token: with `pieces` and `log_probs`.
        """
        if isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(side, str) for side in pairs):
            return next(self.score_stream([cast("tuple[str, str]", pairs)], per_token=per_token))
        return list(self.score_stream(cast("Iterable[tuple[str, str]]", pairs), per_token=per_token))

    def score_stream(self, pairs: Iterable[tuple[str, str]], name: str = "input",
                     per_token: bool = False) -> Iterator[PairScore]:
        """As `score`, for any number of pairs: 10,000 at most are read ahead.

        Args:
            name: where the source comes from, for errors.
            per_token: with `pieces` and `log_probs`.
        Raises:
            DataError: a source word lacks its factors.
            DivergenceError: the model's output is not a number.
            SettingsError: something else than pairs, or the process was forked from that of the scorer.
        """
        rest, first = iter(pairs), 1
        while window := list(islice(rest, WINDOW)):
            _check_pairs(window)
            sources, targets = zip(*window, strict=True)
            try:
                encoded = self.source_vocabulary.encode_batch(list(sources))
            except FactorError as error:
                raise error.at(name, first + error.index) from None
            wanted = self.target_vocabulary.encode_batch(list(targets))
            found = self._score_window(encoded, wanted)
            for text, ids, (log_prob, log_probs) in zip(targets, wanted, found, strict=True):
                yield PairScore(log_prob, len(ids) + 1, len(text) + 1, *(
                    (tuple(map(self.target_vocabulary.id_to_piece, [*ids, EOS])), tuple(map(float, log_probs)))
                    if per_token else ()))
            first += len(window)

    def _score_window(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        """Of each pair, the log-probability of the target, and of its tokens: float32 `[tokens, EOS counted]`."""
        found: list[tuple[float, np.ndarray]] = [(math.nan, np.empty(0))] * len(sources)
        for batch in _batches([max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)],
                              self._batch_tokens):
            arrays = [*pad_sentences([sources[i] for i in batch], self.source_vocabulary.streams),
                      *pad_sentences([targets[i] for i in batch])]
            log_probs, token_log_probs = self._predictor(*arrays)   # [batch], [batch, target length]
            for i, log_prob, of_tokens in zip(batch, log_probs, token_log_probs, strict=True):
                found[i] = float(log_prob), of_tokens[:len(targets[i]) + 1]
        if not all(math.isfinite(log_prob) for log_prob, _ in found):
            raise DivergenceError(f"{self.checkpoint}: the model's output is not a number (NaN), so nothing can be "
                                  "scored: training has diverged; take an earlier checkpoint.")
        return found


def _check_pairs(pairs: Sequence[Any]) -> None:
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise SettingsError(f"{pair!r} is no pair: score takes pairs (source, target).")


def _scoring_tower(model: NMTModel) -> Callable[..., Tensor]:
    def tower(source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor) -> Tensor:
        memory = model.encode(source, source_length)
        log_probs = token_log_probabilities(model, memory, target, target_length)       # [batch, target length]
        tf.identity(log_probs, name="token_log_probs")
        return tf.reduce_sum(log_probs, axis=1, name="log_prob")
    return tower


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The indices of all lengths, similar ones together, each batch as large as `batch_tokens` allows."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[index] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
