"""What a model says of the next token of each hypothesis, before anything is forbidden."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf


class Distribution:
    """A probability for each token of the vocabulary, a row a hypothesis. Nothing is computed but what is asked for."""

    def __init__(self, logits: Tensor) -> None:
        """
        Args:
            logits: `[rows, vocabulary]`, as the model gave them.
        """
        self.logits = tf.cast(logits, tf.float32)
        self._log_sums: Tensor | None = None

    def log_prob(self, token: Tensor, row: Tensor | None = None) -> Tensor:
        """Log-probabilities of tokens, float32 in the shape of `token`.

        Args:
            token: int32 `[rows]`, one for each row; with `row`, of any shape.
            row: int32 in the shape of `token`: whose token it is.
        """
        if self._log_sums is None:
            self._log_sums = self.log_sum(tf.reduce_max(self.logits, axis=1, keepdims=True))[:, 0]
        if row is None:
            return tf.gather(self.logits, token, batch_dims=1) - self._log_sums
        return tf.gather_nd(self.logits, tf.stack([row, token], axis=-1)) - tf.gather(self._log_sums, row)

    def log_sum(self, highest: Tensor) -> Tensor:
        """log(sum(exp(logits))), float32 `[rows, 1]`, given the highest logit of each row, `[rows, 1]`."""
        return highest + tf.math.log(tf.reduce_sum(tf.exp(self.logits - highest), axis=1, keepdims=True))
