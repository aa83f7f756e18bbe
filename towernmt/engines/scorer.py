"""The probability that a trained run, or an export of one, gives to translations, by CTranslate2."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towernmt.checkpoint.saved_run import SavedRun
from towernmt.engines.translator import open_exported, open_model
from towernmt.predict.pair_scorer import PairScorer, token_batches


class CTranslate2Scorer(PairScorer):
    """Scores sentence pairs by CTranslate2.

    Attributes:
        checkpoint: the run's checkpoint (TensorFlow's prefix), or the directory of the export.
    """

    def __init__(self, model: str | Path | SavedRun, checkpoint: str | None = None, *, precision: str | None = None,
                 device: str | None = None, averaged: bool = True, batch_tokens: int = 4096,
                 trust_code: bool = False) -> None:
        """
        Args:
            model, precision, device, trust_code: as of `CTranslate2Translator`.
            checkpoint, averaged, batch_tokens: as of `Scorer`.
        """
        self._model, checkpoint = open_model(open_exported(model, trust_code), checkpoint, precision, averaged, device)
        super().__init__(self._model.source_vocabulary, self._model.target_vocabulary, checkpoint, batch_tokens)

    def score_ids(self, sources: list[list[int]], targets: list[list[int]]) -> list[tuple[float, np.ndarray]]:
        model = self._model
        sizes = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
        model.check_lengths(*sizes)
        begun = [(batch, model.engine.score_batch(
            [model.source_tokens(sources[i]) for i in batch], [model.target_tokens(targets[i]) for i in batch],
            max_input_length=0, asynchronous=True)) for batch in token_batches(sizes, self._batch_tokens)]
        found: list[tuple[float, np.ndarray]] = [(0.0, np.empty(0))] * len(sources)
        for batch, results in begun:
            for i, result in zip(batch, results, strict=True):
                log_probs = np.array(result.result().log_probs)
                found[i] = float(log_probs.sum()), log_probs
        return found
