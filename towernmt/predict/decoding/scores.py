"""Scores of hypotheses: what decides between hypotheses of different lengths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.step import History


class Scoring(ABC):
    """The score of a finished hypothesis.

    Attributes:
        reads_attention: whether it reads `hypotheses.attention`, which is collected then.
    """

    reads_attention = False

    @abstractmethod
    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        """Scores, the higher the better.

        Args:
            log_prob: float32 `[batch, n]`.
            length: int32 `[]`, the tokens of each hypothesis, EOS counted.
            hypotheses: `[batch, n, length]`.
            inputs: of the sentences, by name.
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

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        return log_prob / self._penalty(length)

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        return log_prob / self._penalty(limit)

    def _penalty(self, length: Tensor) -> Tensor:
        """1 for one token, and never less for more tokens."""
        return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, self._alpha)


class Average(LengthPenalty):
    """log p(Y | X) / |Y| ** alpha: with alpha = 1 the mean of the tokens' log-probabilities."""

    def _penalty(self, length: Tensor) -> Tensor:
        return tf.pow(tf.cast(length, tf.float32), self._alpha)


class WordReward(Scoring):
    """Every token adds to the log-probability before it is normalised (a word reward: He et al. 2016)."""

    def __init__(self, reward: float, normalised: LengthPenalty) -> None:
        """
        Args:
            reward: of a token, in nats, above 0.
            normalised: how log-probability and rewards together become a score.
        """
        self._reward, self._normalised = reward, normalised

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._normalised(self._rewarded(log_prob, length), length, hypotheses, inputs)

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        # What is below 0 is highest at the limit, by the reward and by the division; what is above, not divided at all.
        most = self._rewarded(log_prob, limit)
        return tf.where(most < 0, self._normalised.bound(most, limit), most)

    def _rewarded(self, log_prob: Tensor, length: Tensor) -> Tensor:
        return log_prob + self._reward * tf.cast(length, tf.float32)


class CoveragePenalty(Scoring):
    """Another score, less for source positions that no token of the translation looks at (Wu et al. 2016, eq. 14).

    beta * the sum over source positions i of log(min(1, the attention that i got over all steps)); never above 0.
    """

    reads_attention = True
    LEAST = 1e-6
    """Attention below it counts as so much, so that a position which underflows does not make a score infinite."""

    def __init__(self, beta: float, score: Scoring) -> None:
        """
        Args:
            beta: above 0.
            score: what the penalty is added to.
        """
        self._beta, self._score = beta, score

    def __call__(self, log_prob: Tensor, length: Tensor, hypotheses: History, inputs: Mapping[str, Tensor]) -> Tensor:
        covered = tf.clip_by_value(tf.reduce_sum(hypotheses.attention, axis=2), self.LEAST, 1.0)  # [batch, n, source]
        there = tf.sequence_mask(inputs["source_length"], tf.shape(covered)[2], dtype=tf.float32)
        penalty = self._beta * tf.reduce_sum(tf.math.log(covered) * there[:, None], axis=2)
        return self._score(log_prob, length, hypotheses, inputs) + penalty

    def bound(self, log_prob: Tensor, limit: Tensor) -> Tensor:
        return self._score.bound(log_prob, limit)
