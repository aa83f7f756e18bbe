"""Reranking by further models: the reverse one, a right-to-left one, or any other that scores the pair.

A search of one model keeps what that model likes. Another one, which reads the pair from the other side, sees what is
missing: the source given the translation (noisy channel; Li et al. 2016, Yee et al. 2019), or the translation from its
end (Liu et al. 2016; Sennrich et al. 2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.predict.hypotheses import Hypothesis
from towernmt.predict.reranking.reranker import Reranker, rescored
from towernmt.predict.scorer import PairScore, Scorer

DIRECTIONS = ("reverse", "right-to-left", "forward")


class Judge(NamedTuple):
    """A further model.

    Attributes:
        scorer: of its run.
        direction: "forward": it scores the hypothesis given the source; "reverse": the source given the hypothesis;
            "right-to-left": the hypothesis with its words in reverse order, given the source, as it was trained.
        weight: of its score beside that of the search, which has 1.
    """

    scorer: Scorer
    direction: str
    weight: float = 1.0

    def pair(self, source: str, hypothesis: str) -> tuple[str, str]:
        """What it scores, as (source, target)."""
        if self.direction == "reverse":
            return hypothesis, source
        if self.direction == "right-to-left":
            return source, " ".join(reversed(hypothesis.split()))
        return source, hypothesis


@dataclass(frozen=True)
class JudgedList:
    """The hypotheses of a line, with what each model says of them.

    Attributes:
        hypotheses: as the search gave them.
        features: float64 `[hypotheses, 1 + judges]`: the score of the search, and that of each judge.
    """

    hypotheses: Sequence[Hypothesis]
    features: np.ndarray

    def ordered(self, weights: np.ndarray) -> list[Hypothesis]:
        """Best first, by the weighted sum of the features; of equally good ones the former first.

        Args:
            weights: float64 `[1 + judges]`.
        """
        scores = self.features @ weights
        return [rescored(self.hypotheses[place], scores[place])
                for place in np.argsort(-scores, kind="stable")]


class ModelReranker(Reranker):
    """Score of the search + the sum over the judges of weight * log p / ((5 + n) / 6) ** alpha.

    n counts the tokens that the judge scores, EOS included: those of the source for a reverse model. It is the
    normalisation of the search itself (Wu et al. 2016), so that all scores are of one kind.
    """

    def __init__(self, judges: Sequence[Judge], length_penalty: float = 0.6) -> None:
        """
        Args:
            judges: at least one.
            length_penalty: alpha; 0 takes the log-probabilities as they are.
        Raises:
            SettingsError: a value that cannot work.
        """
        if not judges:
            raise SettingsError("There is no model to rerank by: name one.")
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
        """What each model says of each hypothesis.

        Args:
            sources: a line each.
            lists: the hypotheses of each line.
        """
        columns = [iter(self._scores(judge, sources, lists)) for judge in self._judges]
        return [JudgedList(hypotheses, np.array([[hypothesis.score, *map(next, columns)] for hypothesis in hypotheses]))
                for hypotheses in lists]

    def _scores(self, judge: Judge, sources: Sequence[str],
                lists: Sequence[Sequence[Hypothesis]]) -> Iterator[float]:
        """The normalised score of each hypothesis, line by line; equal pairs are scored once."""
        pairs = [judge.pair(source, hypothesis.text)
                 for source, hypotheses in zip(sources, lists, strict=True) for hypothesis in hypotheses]
        distinct = list(dict.fromkeys(pairs))
        scored = dict(zip(distinct, judge.scorer.score_stream(distinct), strict=True))
        return (self._normalised(scored[pair]) for pair in pairs)

    def _normalised(self, score: PairScore) -> float:
        return score.log_prob / ((5 + score.tokens) / 6) ** self._alpha
