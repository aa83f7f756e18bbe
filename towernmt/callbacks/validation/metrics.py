"""The metrics of a validation: what each is called, which way is better, and how it comes out of the validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towernmt.predict.evaluate import Scores


@dataclass(frozen=True)
class Outcome:
    """What came out of the validation of one set.

    Attributes:
        translations: of its sentences, detokenised.
        scores: of these.
        nll: mean negative log-likelihood of a target token (nats), without label smoothing; None: not computed.
    """

    translations: Sequence[str]
    scores: Scores
    nll: float | None = None


@dataclass(frozen=True)
class Metric:
    """One figure of an outcome.

    Attributes:
        name: in `validation.metric`.
        label: in reports.
        mode: 'max' if higher is better, 'min' if lower is.
        digits: behind the point, in reports.
        value: the figure; None where the outcome lacks it.
    """

    name: str
    label: str
    mode: str
    digits: int
    value: Callable[[Outcome], float | None]

    def scalar(self, set_name: str = "") -> str:
        """The name of its scalar; that of the first validation set has no name of a set in it."""
        return f"validation_{self.name}/{set_name}" if set_name else f"validation_{self.name}"

    def at_least_as_good(self, score: float, other: float) -> bool:
        """Whether `score` is no worse than `other`."""
        return score >= other if self.mode == "max" else score <= other

    def text(self, score: float) -> str:
        """A score as reports show it."""
        return f"{score:.{self.digits}f}"


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood of a token (nats); infinite where that overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


METRICS = {metric.name: metric for metric in (
    Metric("bleu", "BLEU", "max", 2, lambda outcome: outcome.scores.bleu),
    Metric("chrf", "chrF", "max", 2, lambda outcome: outcome.scores.chrf),
    Metric("loss", "nll", "min", 4, lambda outcome: outcome.nll),
    Metric("perplexity", "perplexity", "min", 2,
           lambda outcome: None if outcome.nll is None else perplexity(outcome.nll)),
)}
"""By name."""
OF_LOSS = ("loss", "perplexity")
"""Those that come from the teacher-forced loss."""

_LOWER = {metric.scalar() for metric in METRICS.values() if metric.mode == "min"} | {"loss", "nll", "perplexity"}


def mode_of(scalar: str) -> str:
    """Which way a scalar of training or validation is better: 'max' or 'min'."""
    return "min" if scalar.split("/")[0] in _LOWER else "max"
