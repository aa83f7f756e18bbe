"""The weights of reranking that give the best BLEU on a validation set: a line search, one weight at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU

from towernmt.core.errors import DataError
from towernmt.predict.reranking.by_models import JudgedList

STEPS = np.arange(0, 61) / 20
"""The weights that are tried: 0 to 3, in steps of 0.05."""
_ROUNDS = 10


class Tuned(NamedTuple):
    """What tuning has found.

    Attributes:
        weights: float64 `[1 + judges]`, the first of them 1.
        bleu: with them, 0 to 100.
        before: BLEU of the hypotheses that the search liked best.
    """

    weights: np.ndarray
    bleu: float
    before: float


def tune(lists: Sequence[JudgedList], references: Sequence[str]) -> Tuned:
    """The weights of the judges beside the search's weight of 1, each from 0 to 3.

    Each weight in turn goes to the value with the best corpus BLEU, until none moves. Of equal ones the smaller is
    taken, so that a judge who helps nothing gets 0.

    Args:
        lists: what the models say of the validation set.
        references: its translations by people.
    Raises:
        DataError: not as many references as lists.
    """
    if len(lists) != len(references) or not lists:
        raise DataError(f"{len(lists)} n-best lists and {len(references)} references: there must be one line of "
                        "each for every sentence, and one at least.")
    search = _Search(lists, references)
    weights = np.zeros(lists[0].features.shape[1])
    weights[0] = 1.0
    before = best = search.bleu(weights)
    for _ in range(_ROUNDS):
        start = best
        for place in range(1, len(weights)):
            tried = [np.where(np.arange(len(weights)) == place, step, weights) for step in STEPS]
            scores = [search.bleu(candidate) for candidate in tried]
            if max(scores) > best:
                best, weights = max(scores), tried[int(np.argmax(scores))]
        if best == start:
            break
    return Tuned(weights, best, before)


class _Search:
    """Corpus BLEU as a function of the weights. All hypotheses stand behind each other."""

    def __init__(self, lists: Sequence[JudgedList], references: Sequence[str]) -> None:
        metric = BLEU(effective_order=True)
        self._features = np.concatenate([judged.features for judged in lists])
        self._first = np.concatenate([[0], np.cumsum([len(judged.hypotheses) for judged in lists])[:-1]])
        self._line = np.repeat(np.arange(len(lists)), [len(judged.hypotheses) for judged in lists])
        self._statistics = np.array([
            [score.sys_len, score.ref_len, *score.counts, *score.totals]
            for judged, reference in zip(lists, references, strict=True)
            for score in (metric.sentence_score(hypothesis.text, [reference]) for hypothesis in judged.hypotheses)])

    def bleu(self, weights: np.ndarray) -> float:
        scores = self._features @ weights
        best = np.maximum.reduceat(scores, self._first)
        winners = np.flatnonzero(scores == best[self._line])
        chosen = winners[np.unique(self._line[winners], return_index=True)[1]]     # of equally good ones the former
        system, reference, *counts = self._statistics[chosen].sum(axis=0).tolist()
        half = len(counts) // 2
        return float(BLEU.compute_bleu(counts[:half], counts[half:], system, reference, smooth_method="exp").score)
