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
        self._logits = tf.cast(logits, tf.float32)
        self._log_sums: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """Of the whole vocabulary, float32 `[rows, vocabulary]`."""
        return self._logits

    @property
    def log_sums(self) -> Tensor:
        """log(sum(exp(logits))) of each row, float32 `[rows]`."""
        if self._log_sums is None:
            self._log_sums = self.log_sum(tf.reduce_max(self._logits, axis=1, keepdims=True))[:, 0]
        return self._log_sums

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """The highest logits of each row, float32 `[rows, count]`, and their tokens, int32; the highest first."""
        logits, token = tf.math.top_k(self._logits, count)
        return logits, token

    def log_prob(self, token: Tensor, row: Tensor | None = None) -> Tensor:
        """Log-probabilities of tokens, float32 in the shape of `token`.

        Args:
            token: int32 `[rows]`, one for each row; with `row`, of any shape.
            row: int32 in the shape of `token`: whose token it is.
        """
        if row is None:
            return tf.gather(self._logits, token, batch_dims=1) - self.log_sums
        return tf.gather_nd(self._logits, tf.stack([row, token], axis=-1)) - tf.gather(self.log_sums, row)

    def log_sum(self, highest: Tensor) -> Tensor:
        """log(sum(exp(logits))), float32 `[rows, 1]`, given the highest logit of each row, `[rows, 1]`."""
        return highest + tf.math.log(tf.reduce_sum(tf.exp(self._logits - highest), axis=1, keepdims=True))
