"""The metrics of a validation: their names, their directions, and how they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towernmt.evaluate.metrics import Scores


@dataclass(frozen=True)
class ValidationOutcome:
    """The results of the validation of one set.

    Attributes:
        translations: detokenised translations, one per sentence.
        scores: the scores of `translations`.
        nll: mean negative log-likelihood of a target token (nats), without label smoothing; None: not computed.
    """

    translations: Sequence[str]
    scores: Scores
    nll: float | None = None


@dataclass(frozen=True)
class Metric:
    """One figure of an outcome.

    Attributes:
        name: name in `validation.metric`.
        label: label in reports.
        mode: 'max' if higher values are better, 'min' if lower ones are.
        digits: number of decimals in reports.
        value: returns the figure of an outcome, or None if the outcome lacks it.
    """

    name: str
    label: str
    mode: str
    digits: int
    value: Callable[[ValidationOutcome], float | None]

    def scalar(self, set_name: str = "") -> str:
        """Return the name of the scalar; for the first validation set, `set_name` is empty."""
        return f"validation_{self.name}/{set_name}" if set_name else f"validation_{self.name}"

    def scalar_of(self, set_name: str, first_set: str) -> str:
        """Return the name of the scalar for the validation set `set_name`; `first_set` is the name of the first one."""
        return self.scalar("" if set_name == first_set else set_name)

    def at_least_as_good(self, score: float, other_score: float) -> bool:
        """Return whether `score` is at least as good as `other_score`."""
        return score >= other_score if self.mode == "max" else score <= other_score

    def text(self, score: float) -> str:
        """Return a score as text for reports."""
        return f"{score:.{self.digits}f}"


def perplexity_from_loss(nll: float) -> float:
    """Return exp of the mean negative log-likelihood of a token (nats); infinity if that overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


METRICS = {metric.name: metric for metric in (
    Metric("bleu", "BLEU", "max", 2, lambda outcome: outcome.scores.bleu),
    Metric("chrf", "chrF", "max", 2, lambda outcome: outcome.scores.chrf),
    Metric("loss", "nll", "min", 4, lambda outcome: outcome.nll),
    Metric("perplexity", "perplexity", "min", 2,
           lambda outcome: None if outcome.nll is None else perplexity_from_loss(outcome.nll)),
)}
"""The metrics of a validation, by name."""
OF_LOSS = ("loss", "perplexity")
"""Metrics that need the teacher-forced loss."""

MEAN_OF_SETS = "mean"
"""Value of `validation.metric_set` for the mean over all validation sets, unless a set has this name."""


def scores_of_sets(outcomes: Mapping[str, ValidationOutcome], with_mean: bool = False) -> dict[str, float]:
    """Return the scalars of a validation by name.

    Args:
        outcomes: outcome of each set, by the name of the set in scalars: "" for the first set.
        with_mean: whether to add the mean of each figure over all sets.
    """
    scores = {metric.scalar(tag): value for tag, outcome in outcomes.items() for metric in METRICS.values()
              if (value := metric.value(outcome)) is not None}
    for metric in METRICS.values() if with_mean else ():
        values = [scores[name] for tag in outcomes if (name := metric.scalar(tag)) in scores]
        if values:
            scores[metric.scalar(MEAN_OF_SETS)] = sum(values) / len(values)
    return scores


MEANS_OF_TRAINING = ("loss", "nll", "perplexity")
"""Scalars of training that are means over the updates between two log lines; lower values are better."""
_LOWER_IS_BETTER = {*MEANS_OF_TRAINING, *(metric.scalar() for metric in METRICS.values() if metric.mode == "min")}


def mode_of(scalar: str) -> str:
    """Return 'max' if higher values of a scalar of training or validation are better, else 'min'."""
    return "min" if scalar.split("/")[0] in _LOWER_IS_BETTER else "max"
