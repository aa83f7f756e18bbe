"""When the finished hypotheses of a beam are final, before the length limit is reached."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.scores import Scoring


@dataclass(frozen=True)
class Stopping:
    """A rule for the end of a beam's search.

    Attributes:
        exact: end when no unfinished hypothesis can come under the n best any more; the result is that of a search up
            to the limit.
        enough: end when so many hypotheses have finished; 0 for any number. Beam size is the rule of most systems, a
            multiple of it is a patience (Kasai et al. 2022, "A Call for Clarity in Beam Search").
    """

    exact: bool = True
    enough: int = 0

    def start(self, batch: Tensor) -> Tensor:
        """How many have finished before the first step: int32 `[batch]`; `()` where nobody counts them."""
        return tf.zeros([batch], tf.int32) if self.enough else ()

    def counted(self, ended: Tensor, final: Tensor) -> Tensor:
        """How many have finished after a step.

        Args:
            ended: before it.
            final: bool `[batch, n]`, which hypotheses the step has finished.
        """
        return ended + tf.math.count_nonzero(final, axis=1, dtype=tf.int32) if self.enough else ()

    def is_decided(self, ended: Tensor, last_score: Tensor, best_live: Tensor, limit: Tensor,
                   scoring: Scoring) -> Tensor:
        """Whether the finished hypotheses are final, bool `[batch]`.

        Args:
            ended: how many there were, as counted.
            last_score: float32 `[batch]`, of the last one of the n best.
            best_live: float32 `[batch]`, the highest log-probability of an unfinished one.
            limit: int32 `[batch]`, how many tokens that one may come to.
            scoring: what gives the scores.
        """
        decided = tf.zeros_like(limit, tf.bool)
        if self.exact:
            decided = last_score >= scoring.bound(best_live, limit)
        return decided | (ended >= self.enough) if self.enough else decided


EXACT = Stopping()
