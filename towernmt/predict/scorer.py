"""`Scorer`: the probability that a trained run gives to translations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.checkpoint.packaged_run import open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.models.interface import NMTModel, batch_signature, token_log_probabilities
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.ensemble import open_trained
from towernmt.predict.pair_scorer import PairScore, PairScorer, bits_per_character, token_batches, token_perplexity
from towernmt.predict.search.search_settings import EnsembleSettings, as_list

__all__ = ["PairScore", "Scorer", "bits_per_character", "token_perplexity"]


class Scorer(PairScorer):
    """Scores sentence pairs by teacher forcing with a checkpoint of a training run.

    Args:
        run_dir: directory of a training run (its --logdir) or a package; several form an ensemble.
        checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the average that the run kept
            at its end, else the best by validation, else the last. One for each run, one for all, or several of one
            run as an ensemble.
        device: "cpu", "gpu" or "gpu:N"; by default a GPU if available.
        averaged: whether to use the moving average of the weights, if the run has one.
        batch_tokens: maximum tokens of the longer side in a batch, with padding (at least one pair).
        model: the `NMTModel` of the run, or its class, if the run does not contain its code.
        ensemble: how to combine the members; by default the mean of their probabilities.
        precision, trust_code: see `Translator`.

    Attributes:
        checkpoint: the checkpoint in use (TensorFlow's prefix); of an ensemble its members', joined by " + ".
        source_vocabulary, target_vocabulary: the run's vocabularies.

    Raises:
        CheckpointError: the checkpoint does not exist, or does not match the run's settings.
        SettingsError: an invalid value, not a run, or a missing GPU.
    """

    def __init__(self, run_dir: str | Path | SavedRun | Sequence[str | Path | SavedRun],
                 checkpoint: str | Sequence[str] | None = None, *,
                 device: str | None = None, averaged: bool = True, batch_tokens: int = 4096, model: Any = None,
                 ensemble: EnsembleSettings | None = None, precision: str = PRECISIONS[0],
                 trust_code: bool = False) -> None:
        runs = [open_run(path, trust_code) for path in as_list(run_dir)]
        with open_trained(runs, as_list(checkpoint), as_list(model), ensemble=ensemble, device=device,
                          averaged=averaged, precision=precision) as trained:
            super().__init__(trained.source_vocabulary, trained.target_vocabulary, trained.checkpoint, batch_tokens)
            self._predictor = trained.predictor(
                _scoring_tower(trained.model), batch_signature(trained.model.source_factor_count)[:4],
                ["log_prob", "token_log_probs"])

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        scores: list[tuple[float, np.ndarray]] = [(math.nan, np.empty(0))] * len(sources)
        for batch in token_batches([max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)],
                                   self._batch_tokens):
            arrays = [*pad_sentences([sources[i] for i in batch], self.source_vocabulary.streams),
                      *pad_sentences([targets[i] for i in batch])]
            log_probs, token_log_probs = self._predictor(*arrays)   # [batch], [batch, target length]
            for i, log_prob, token_log_prob in zip(batch, log_probs, token_log_probs, strict=True):
                scores[i] = float(log_prob), token_log_prob[:len(targets[i]) + 1]
        return scores


def _scoring_tower(model: NMTModel) -> Callable[..., Tensor]:
    def tower(source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor) -> Tensor:
        memory = model.encode(source, source_length)
        log_probs = token_log_probabilities(model, memory, target, target_length)       # [batch, target length]
        tf.identity(log_probs, name="token_log_probs")
        return tf.reduce_sum(log_probs, axis=1, name="log_prob")
    return tower
