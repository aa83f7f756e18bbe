"""Scores of hypotheses: what decides between hypotheses of different lengths."""

from __future__ import annotations

from abc import ABC, abstractmethod

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.step import History


class Scoring(ABC):
    """The score of a finished hypothesis."""

    @abstractmethod
    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History) -> Tensor:
        """Scores, the higher the better.

        Args:
            log_prob: float32 `[batch, n]`.
            length: int32 `[]`, the tokens of each hypothesis, EOS counted.
            hypotheses: `[batch, n, length]`.
        Returns:
            float32 `[batch, n]`.
        """

    @abstractmethod
    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        """A score that no hypothesis can exceed which is unfinished now. Log-probabilities only fall.

        Args:
            log_prob: float32 `[batch]`, of the best unfinished hypothesis.
            limit: int32 `[batch]`, the most tokens that it can come to.
        Returns:
            float32 `[batch]`.
        """


class LengthPenalty(Scoring):
    """log p(Y | X) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, without the coverage term); |Y| counts EOS."""

    def __init__(self, alpha: float) -> None:
        """
        Args:
            alpha: 0 or more; 0 is no normalisation.
        """
        self._alpha = alpha

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History) -> Tensor:
        return log_prob / self._penalty(length)

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        return log_prob / self._penalty(limit)

    def _penalty(self, length: Tensor) -> Tensor:
        return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, self._alpha)
