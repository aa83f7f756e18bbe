"""Hypotheses that have ended, which a beam keeps apart from those that live."""

from __future__ import annotations

from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.decoding.processors.processor import NEVER
from towernmt.predict.decoding.step import History


class Finished(NamedTuple):
    """The best finished hypotheses of each sentence.

    Attributes:
        history: `[batch, n, length]`; PAD and 0 in a place that is empty.
        score: float32 `[batch, n]`, descending; `NEVER` for an empty place.
    """

    history: History
    score: Tensor

    @classmethod
    def none(cls, empty: History) -> Finished:
        """Before the first step: `empty` are n hypotheses of no token."""
        return cls(empty, tf.fill(tf.shape(empty.tokens)[:2], NEVER))

    def merged(self, new: History, score: Tensor) -> Finished:
        """The best n of these and of new ones.

        Args:
            new: `[batch, m, length + 1]`.
            score: float32 `[batch, m]`; `NEVER` for one that has not ended.
        """
        count = self.score.shape[1]
        best, place = tf.math.top_k(tf.concat([self.score, score], axis=1), count)

        def merged(before: Tensor, added: Tensor) -> Tensor:
            padding = [[0, 0], [0, 0], [0, 1]] + [[0, 0]] * (before.shape.rank - 3)
            both = tf.concat([tf.pad(before, padding, constant_values=PAD), added], axis=1)
            both = tf.gather(both, place, batch_dims=1)
            # A place that no hypothesis has taken yet holds PAD only.
            taken = tf.reshape(best > NEVER, [-1, count] + [1] * (before.shape.rank - 2))
            return tf.where(taken, both, tf.zeros_like(both))

        return Finished(tf.nest.map_structure(merged, self.history, new), best)
