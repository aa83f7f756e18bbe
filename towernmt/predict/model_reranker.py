"""Rerank by further models, such as a reverse or a right-to-left one, and tune their weights on a validation set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.clean_text import split_tags
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.pair_scorer import PairScore, PairScorer
from towernmt.predict.reranking import Reranker, rescored

DIRECTIONS = ("reverse", "right-to-left", "forward")


class Judge(NamedTuple):
    """A model that scores hypotheses.

    Attributes:
        scorer: scorer of its run.
        direction: "forward": it scores the hypothesis given the source; "reverse": the source, without tags such as
            `<2de>`, given the hypothesis; "right-to-left": the hypothesis with its words in reverse order, given the
            source, as it was trained.
        weight: weight of its score relative to that of the search.
    """

    scorer: PairScorer
    direction: str
    weight: float = 1.0

    def pair(self, source: str, hypothesis: str) -> tuple[str, str]:
        """Return the (source, target) pair that the judge scores."""
        if self.direction == "reverse":
            return hypothesis, split_tags(source)[1]
        if self.direction == "right-to-left":
            return source, " ".join(reversed(hypothesis.split()))
        return source, hypothesis


@dataclass(frozen=True)
class JudgedList:
    """The hypotheses of a line with the scores of each model.

    Attributes:
        hypotheses: hypotheses in the order of the search.
        features: float64 `[hypotheses, 1 + judges]`: scores of the search and of each judge.
    """

    hypotheses: Sequence[Hypothesis]
    features: np.ndarray

    def ordered(self, weights: np.ndarray) -> list[Hypothesis]:
        """Return the hypotheses by the weighted sum of features, best first; ties keep their order.

        Args:
            weights: float64 `[1 + judges]`.
        """
        scores = self.features @ weights
        return [rescored(self.hypotheses[index], scores[index])
                for index in np.argsort(-scores, kind="stable")]


class ModelReranker(Reranker):
    """Reranker by the scores of further models.

    The new score is that of the search + the sum over the judges of weight * log p / ((5 + n) / 6) ** alpha, where n is
    the number of tokens that the judge scores, EOS included. This is the normalisation of the search (Wu et al. 2016),
    so all scores are comparable.

    Args:
        judges: at least one.
        length_penalty: exponent alpha; 0 means plain log-probabilities.

    Raises:
        SettingsError: an invalid value.
    """

    def __init__(self, judges: Sequence[Judge], length_penalty: float = 0.6) -> None:
        if not judges:
            raise SettingsError("Reranking needs at least one model.")
        if not 0.0 <= length_penalty < float("inf"):
            raise SettingsError(f"length_penalty={length_penalty}: choose 0 or more.")
        for judge in judges:
            if judge.direction not in DIRECTIONS or not np.isfinite(judge.weight):
                raise SettingsError(f"A model to rerank by with direction={judge.direction} and weight={judge.weight}: "
                                    f"choose one of {', '.join(DIRECTIONS)}, and a finite number.")
        self._judges, self._alpha = list(judges), length_penalty
        self.weights = np.array([1.0, *(judge.weight for judge in judges)])

    def __call__(self, sources: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        return [judged.ordered(self.weights) for judged in self.judged(sources, lists)]

    def judged(self, sources: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[JudgedList]:
        """Return the score of each model for each hypothesis."""
        columns = [iter(self._scores(judge, sources, lists)) for judge in self._judges]
        return [JudgedList(hypotheses, np.array([[hypothesis.score, *map(next, columns)] for hypothesis in hypotheses]))
                for hypotheses in lists]

    def _scores(self, judge: Judge, sources: Sequence[str],
                lists: Sequence[Sequence[Hypothesis]]) -> Iterator[float]:
        """Return the normalised score of each hypothesis, line by line; equal pairs are scored once."""
        pairs = [judge.pair(source, hypothesis.text)
                 for source, hypotheses in zip(sources, lists, strict=True) for hypothesis in hypotheses]
        distinct = list(dict.fromkeys(pairs))
        scored = dict(zip(distinct, judge.scorer.score_stream(distinct), strict=True))
        return (self._normalised(scored[pair]) for pair in pairs)

    def _normalised(self, score: PairScore) -> float:
        return score.log_prob / ((5 + score.tokens) / 6) ** self._alpha


CANDIDATE_WEIGHTS = np.arange(0, 61) / 20
"""0 to 3, in steps of 0.05."""
_MAX_ROUNDS = 10


class TunedWeights(NamedTuple):
    """Result of tuning the weights.

    Attributes:
        weights: float64 `[1 + judges]`, the first is 1.
        bleu: BLEU with these weights, 0 to 100.
        bleu_of_search: BLEU of the hypotheses that the search ranks first, 0 to 100.
    """

    weights: np.ndarray
    bleu: float
    bleu_of_search: float


def tune(lists: Sequence[JudgedList], references: Sequence[str]) -> TunedWeights:
    """Tune the weights of the judges, each from 0 to 3, relative to the search's weight of 1.

    Coordinate ascent: each weight in turn is set to the value with the best corpus BLEU, until none changes. On a tie,
    the smaller value wins, so that a useless judge gets 0.

    Args:
        lists: scores of the models on the validation set.
        references: reference translations.

    Raises:
        DataError: the numbers of references and lists differ.
    """
    if len(lists) != len(references) or not lists:
        raise DataError(f"{len(lists)} n-best lists and {len(references)} references: each sentence needs one of "
                        "each, and at least one sentence is needed.")
    objective = _CorpusBleu(lists, references)
    weights = np.zeros(lists[0].features.shape[1])
    weights[0] = 1.0
    bleu_of_search = best = objective.bleu(weights)
    for _ in range(_MAX_ROUNDS):
        previous_best = best
        for index in range(1, len(weights)):
            candidates = [np.where(np.arange(len(weights)) == index, weight, weights) for weight in CANDIDATE_WEIGHTS]
            scores = [objective.bleu(candidate) for candidate in candidates]
            if max(scores) > best:
                best, weights = max(scores), candidates[int(np.argmax(scores))]
        if best == previous_best:
            break
    return TunedWeights(weights, best, bleu_of_search)


class _CorpusBleu:
    """Corpus BLEU as a function of the weights, over the concatenated hypotheses of all lines."""

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
        selected = winners[np.unique(self._line[winners], return_index=True)[1]]     # the first one on a tie
        system, reference, *counts = self._statistics[selected].sum(axis=0).tolist()
        orders = len(counts) // 2
        return float(BLEU.compute_bleu(counts[:orders], counts[orders:], system, reference, smooth_method="exp").score)
