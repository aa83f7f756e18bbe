"""Scores by which finished hypotheses of different lengths are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.search.step_context import History


class Scoring(ABC):
    """Score of finished hypotheses.

    Attributes:
        reads_attention: whether it reads `hypotheses.attention`, so that decoding collects attention.
    """

    reads_attention = False

    @abstractmethod
    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of hypotheses, float32 `[batch, n]`; higher is better.

        Args:
            log_prob: float32 `[batch, n]`.
            length: int32 `[]`, number of tokens of each hypothesis, EOS included.
            hypotheses: `[batch, n, length]`.
            inputs: inputs of the sentences by name.
        """

    @abstractmethod
    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        """Return an upper bound of the scores of all unfinished hypotheses, float32 `[batch]`.

        The log-probability of a hypothesis never increases.

        Args:
            log_prob: float32 `[batch]`, log-probability of the best unfinished hypothesis.
            limit: int32 `[batch]`, maximum number of tokens.
        """


class LengthPenalty(Scoring):
    """log p(Y | X) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, without the coverage term); |Y| includes EOS.

    Args:
        alpha: exponent, 0 or more; 0 for no normalisation.
    """

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        return log_prob / self._penalty(length)

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        return log_prob / self._penalty(limit)

    def _penalty(self, length: Tensor) -> Tensor:
        """Return the divisor, which is 1 for one token and does not decrease with the length."""
        return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, self._alpha)


class Average(LengthPenalty):
    """log p(Y | X) / |Y| ** alpha: with alpha = 1 the mean of the tokens' log-probabilities."""

    def _penalty(self, length: Tensor) -> Tensor:
        return tf.pow(tf.cast(length, tf.float32), self._alpha)


class WordReward(Scoring):
    """Word reward (He et al. 2016): each token adds to the log-probability before the normalisation.

    Args:
        reward: addend for each token, in nats, above 0.
        normalised: normalisation of the sum of log-probability and rewards.
    """

    def __init__(self, reward: float, normalised: LengthPenalty) -> None:
        self._reward, self._normalised = reward, normalised

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._normalised(self._rewarded(log_prob, length), length, hypotheses, inputs)

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        # A negative score is highest at the length limit, due to reward and division; a positive one without division.
        rewarded = self._rewarded(log_prob, limit)
        return tf.where(rewarded < 0, self._normalised.bound(rewarded, limit), rewarded)

    def _rewarded(self, log_prob: Tensor, length: Tensor) -> Tensor:
        return log_prob + self._reward * tf.cast(length, tf.float32)


class CoveragePenalty(Scoring):
    """Another score plus a penalty for source positions without attention (Wu et al. 2016, equation 14).

    The penalty is beta * the sum over source positions of log(min(1, sum of attention over all steps)), at most 0.

    Args:
        beta: weight of the penalty, above 0.
        score: score to which the penalty is added.
    """

    reads_attention = True
    MIN_COVERAGE = 1e-6
    """Minimum attention of a position, so that an underflow does not make a score infinite."""

    def __init__(self, beta: float, score: Scoring) -> None:
        self._beta, self._score = beta, score

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        coverage = tf.reduce_sum(hypotheses.attention, axis=2)                      # [batch, n, source length]
        coverage = tf.clip_by_value(coverage, self.MIN_COVERAGE, 1.0)
        is_token = tf.sequence_mask(inputs["source_length"], tf.shape(coverage)[2], dtype=tf.float32)
        penalty = self._beta * tf.reduce_sum(tf.math.log(coverage) * is_token[:, None], axis=2)
        return self._score(log_prob, length, hypotheses, inputs) + penalty

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        return self._score.bound(log_prob, limit)
