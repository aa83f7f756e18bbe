"""Minimum Bayes risk: of the candidates, the one that is most like all of them (Kumar and Byrne 2004).

With samples of the model as candidates and as references, the mean utility of a candidate is an estimate of what it is
worth under the model's own distribution (Eikema and Aziz 2020; Freitag et al. 2022).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.predict.hypotheses import Hypothesis
from towernmt.predict.reranking.reranker import Reranker, rescored
from towernmt.predict.reranking.utilities import OwnUtility, Utility, named_utility


class MinimumBayesRisk(Reranker):
    """Orders the hypotheses of a line by their mean utility against all of them.

    Each hypothesis counts as often as it is there, so samples stand for the model's probabilities. Of equal texts one
    is kept. The new score is the mean utility.
    """

    def __init__(self, utility: str | Utility | Callable[[list[str], list[str]], Any] = "chrf",
                 aggregate: bool = False) -> None:
        """
        Args:
            utility: "chrf", "bleu", FILE.py:FUNCTION, or a function; see `OwnUtility`.
            aggregate: compare with the mean of the references at once, in place of each one: faster, and a little
                different. Only for chrF.
        Raises:
            SettingsError: there is no such utility, or it knows no mean of references.
        """
        if isinstance(utility, str):
            utility = named_utility(utility)
        self._utility = utility if isinstance(utility, Utility) else OwnUtility(utility)
        self._aggregate = aggregate
        if aggregate and type(self._utility).of_mean is Utility.of_mean:
            raise SettingsError("Only the utility chrf knows the mean of references: leave aggregation out, or choose "
                                "chrf.")

    def __call__(self, sources: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        return [self.ordered(hypotheses) for hypotheses in lists]

    def ordered(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """The different hypotheses of one line, best first; of equally good ones the former first."""
        times = Counter(hypothesis.text for hypothesis in hypotheses)
        first = {hypothesis.text: hypothesis for hypothesis in reversed(hypotheses)}
        texts = list(times)
        worth = self.expected_utilities(texts, texts, [times[text] for text in texts])
        order = np.argsort(-worth, kind="stable")
        return [rescored(first[texts[place]], worth[place]) for place in order]

    def expected_utilities(self, candidates: Sequence[str], references: Sequence[str],
                           weights: Sequence[float] | None = None) -> np.ndarray:
        """The mean utility of each candidate against references, float64 `[candidates]`.

        Args:
            weights: of the references; None for equal ones.
        """
        share = np.ones(len(references)) if weights is None else np.asarray(weights, np.float64)
        share = share / share.sum()
        if self._aggregate:
            return self._utility.of_mean(candidates, references, share)
        return self._utility.of_pairs(candidates, references) @ share
