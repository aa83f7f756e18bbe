"""What a model says of the next token of each hypothesis, before anything is forbidden."""

from __future__ import annotations

import math

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
        return top_of_rows(self._logits, count)

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


def top_of_rows(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row, the largest first; of equal ones the first.

    TensorFlow's `top_k` takes some 7 ns a value on a CPU, longer than the product that makes a logit. So the largest
    value of each group comes first, and `top_k` sees the groups of the largest ones alone: what is looked for is in as
    many groups at most.

    Args:
        x: float32 `[rows, size]`.
        count: at most `size`.
    Returns:
        values float32 and their places int32, each `[rows, count]`.
    """
    size = x.shape[1]
    group = _group_size(size, count) if size else 0
    if not group:
        top, place = tf.math.top_k(x, count)
        return top, place
    if size % group:
        x = tf.pad(x, [[0, 0], [0, -size % group]], constant_values=float("-inf"))
    grouped = tf.reshape(x, [-1, -(-size // group), group])
    _, best = tf.math.top_k(tf.reduce_max(grouped, axis=2), count)
    best = -tf.math.top_k(-best, count)[0]                                      # [rows, count], ascending
    values = tf.reshape(tf.gather(grouped, best, batch_dims=1), [-1, count * group])
    top, place = tf.math.top_k(values, count)
    return top, tf.gather(best, place // group, batch_dims=1) * group + place % group


def _group_size(size: int, count: int) -> int:
    """How many values make a group, so that `top_k` sees few; 0 if it should see all."""
    ideal = math.isqrt(size // count)
    if ideal < 4:
        return 0
    return next((group for group in range(ideal, 2 * ideal) if size % group == 0), ideal)
