"""The model's distribution of the next token, computed on demand, and the largest values of rows."""

from __future__ import annotations

import math

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels import as_ids

NEG_INF = float("-inf")
"""Logit of a forbidden token, log-probability of an impossible hypothesis, and score of an empty entry."""


class Distribution:
    """Probabilities of all tokens of the vocabulary, with a row for each hypothesis, computed on demand.

    Args:
        logits: `[rows, vocabulary]`, logits of the model.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = tf.cast(logits, tf.float32)
        self._log_sums: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """Logits of the complete vocabulary, float32 `[rows, vocabulary]`."""
        return self._logits

    @property
    def log_sums(self) -> Tensor:
        """log(sum(exp(logits))) of each row, float32 `[rows]`."""
        if self._log_sums is None:
            self._log_sums = self.log_sum(tf.reduce_max(self._logits, axis=1, keepdims=True))[:, 0]
        return self._log_sums

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the highest logits of each row, float32 `[rows, count]`, and their tokens, ids; highest first."""
        return top_of_rows(self._logits, count)

    def log_prob(self, token: Tensor, row: Tensor | None = None) -> Tensor:
        """Return log-probabilities of tokens, float32 in the shape of `token`.

        Args:
            token: ids `[rows]`, a token of each row; with `row`, a tensor of any shape.
            row: ids in the shape of `token`, row of each token.
        """
        if row is None:
            return tf.gather(self._logits, token, batch_dims=1) - self.log_sums
        return tf.gather_nd(self._logits, tf.stack([row, token], axis=-1)) - tf.gather(self.log_sums, row)

    def log_sum(self, highest: Tensor) -> Tensor:
        """Return log(sum(exp(logits))), float32 `[rows, 1]`; `highest` is the highest logit of each row."""
        return highest + tf.math.log(tf.reduce_sum(tf.exp(self._logits - highest), axis=1, keepdims=True))


def top_of_rows(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row, in descending order; of equal values, the first.

    TensorFlow's `top_k` takes about 7 ns per value on a CPU, longer than the product that computes a logit. So each row
    is divided into groups, and `top_k` reads only the `count` groups with the largest maxima, which contain the result.

    Args:
        x: float32 `[rows, size]`.
        count: number of values, at most `size`.

    Returns:
        values float32 and their indices (`kernels.as_ids`), each `[rows, count]`.
    """
    size = x.shape[1]
    group = _group_size(size, count) if size else 0
    if not group:
        values, index = tf.math.top_k(x, count)
        return values, as_ids(index)
    if size % group:
        x = tf.pad(x, [[0, 0], [0, -size % group]], constant_values=float("-inf"))
    grouped = tf.reshape(x, [-1, -(-size // group), group])
    _, best_groups = tf.math.top_k(tf.reduce_max(grouped, axis=2), count)
    best_groups = -tf.math.top_k(-as_ids(best_groups), count)[0]                # [rows, count], ascending
    members = tf.reshape(tf.gather(grouped, best_groups, batch_dims=1), [-1, count * group])
    values, index = tf.math.top_k(members, count)
    index = as_ids(index)
    return values, tf.gather(best_groups, index // group, batch_dims=1) * group + index % group


def _group_size(size: int, count: int) -> int:
    """Return the size of groups with which `top_k` sees the fewest values; 0 for no groups."""
    ideal = math.isqrt(size // count)
    if ideal < 4:
        return 0
    return next((group for group in range(ideal, 2 * ideal) if size % group == 0), ideal)
