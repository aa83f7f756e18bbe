"""Positions: a signal that is added to the embeddings, or what self-attention sees of pairs of words.

Attention asks a `PairPositions` twice: to `turn` queries and keys by their positions, and for what stands `between`
two positions.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import matmul, to_float32
from towernmt.models.layers.initializers import StatelessUniform


def sinusoids(positions: Tensor, depth: int) -> Tensor:
    """Sinusoidal position signals (Vaswani et al. 2017): sines, then cosines.

    Args:
        positions: int32 or float32 `[length]`.
        depth: even.
    Returns:
        float32 `[length, depth]`, wavelengths from 2 pi to 10000 * 2 pi.
    """
    rates = np.exp(-math.log(10000.0) * np.arange(depth // 2) / max(1, depth // 2 - 1)).astype(np.float32)
    angles = tf.cast(positions, tf.float32)[:, None] * rates[None, :]
    return tf.concat([tf.sin(angles), tf.cos(angles)], 1)


class PairPositions(Protocol):
    """What self-attention knows of positions."""

    def turn(self, x: Tensor, first: Tensor) -> Tensor:
        """Queries or keys `[batch, heads, length, head depth]` of the positions from `first`, int32 `[]`, on."""

    def between(self, length: Tensor, depth: int, step: bool) -> Distances | None:
        """What attention adds for each distance; None for nothing.

        Args:
            length: int32 `[]`, the number of keys.
            depth: of a head.
            step: there is one query, at the last of the keys' positions.
        """


class RotaryPositions:
    """Rotary positions (Su et al. 2021): a query's product with a key depends on their distance alone.

    The pairs of dimensions that are turned are (i, i + head depth / 2), which is the paper's (2i, 2i + 1) in another
    order: the kernels that make queries and keys can hold them in either.
    """

    def turn(self, x: Tensor, first: Tensor) -> Tensor:
        half = int(x.shape[-1]) // 2
        rates = np.exp(-math.log(10000.0) * np.arange(half) / half).astype(np.float32)
        positions = tf.cast(first + tf.range(tf.shape(x)[2]), tf.float32)
        angles = positions[:, None] * rates[None, :]                            # [length, head depth / 2]
        sin, cos = tf.sin(angles), tf.cos(angles)
        left, right = tf.split(to_float32(x), 2, -1)
        return tf.cast(tf.concat([left * cos - right * sin, left * sin + right * cos], -1), x.dtype)

    def between(self, length: Tensor, depth: int, step: bool) -> None:
        return None


class RelativePositions(NamedTuple):
    """Relative positions (Shaw et al. 2018): a learned vector for each distance, added to keys and to values.

    All heads of a layer share its vectors. The variables are made in the enclosing variable scope.

    Attributes:
        reach: the largest distance that has a vector of its own.
    """

    reach: int

    def turn(self, x: Tensor, first: Tensor) -> Tensor:
        return x

    def between(self, length: Tensor, depth: int, step: bool) -> Distances:
        last = tf.constant(1) if step else length + 1
        rows = tf.clip_by_value(tf.range(1 - length, last), -self.reach, self.reach) + self.reach
        tables = []
        for name in ("relative_keys", "relative_values"):
            limit = math.sqrt(6.0 / (2 * self.reach + 1 + depth))
            table = tf1.get_variable(name, [2 * self.reach + 1, depth], initializer=StatelessUniform(limit, name))
            # A product and not a gather: its gradient is as small as the table, not a row a distance.
            tables.append(tf.matmul(tf.one_hot(rows, 2 * self.reach + 1), table))
        return Distances(tables[0], tables[1], step)


class Distances(NamedTuple):
    """The vectors of all distances from a query to a key.

    Attributes:
        keys: float32 `[distances, head depth]`: with one query (`step`) `length` distances, 1 - length to 0; else
            `2 * length`, 1 - length to length, of which the last is not used.
        values: likewise.
        step: whether there is one query.
    """

    keys: Tensor
    values: Tensor
    step: bool

    def logits(self, query: Tensor) -> Tensor:
        """`[batch, heads, queries, keys]`, to be added to the logits of `query` `[batch, heads, queries, depth]`."""
        by_distance = _multiply(query, self.keys, transpose=True)               # [batch, heads, queries, distances]
        return by_distance if self.step else _distances_to_keys(by_distance)

    def context(self, weights: Tensor) -> Tensor:
        """`[batch, heads, queries, head depth]`, to be added to the mean of the values under `weights`."""
        return _multiply(weights if self.step else _keys_to_distances(weights), self.values, transpose=False)


def _multiply(x: Tensor, table: Tensor, transpose: bool) -> Tensor:
    """`x` `[batch, heads, queries, depth]` times one matrix, as one product."""
    flat = matmul(tf.reshape(x, [-1, table.shape[1] if transpose else tf.shape(table)[0]]), table,
                  transpose_b=transpose)
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], tf.shape(flat)[1:]], 0))


def _distances_to_keys(x: Tensor) -> Tensor:
    """`y[..., i, j] = x[..., i, j - i + length - 1]`: `[batch, heads, length, length]` of `[..., length, 2 * length]`.

    Rows that are one element shorter begin one element earlier (Huang et al. 2019): nothing is gathered.
    """
    shape = tf.shape(x)
    length = shape[2]
    flat = tf.reshape(x, [shape[0], shape[1], -1])[:, :, length - 1:length - 1 + length * (2 * length - 1)]
    return tf.reshape(flat, [shape[0], shape[1], length, 2 * length - 1])[:, :, :, :length]


def _keys_to_distances(x: Tensor) -> Tensor:
    """The inverse of `_distances_to_keys`, with zeros at distances that no key has."""
    shape = tf.shape(x)
    length = shape[2]
    flat = tf.reshape(tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, length - 1]]), [shape[0], shape[1], -1])
    return tf.reshape(tf.pad(flat, [[0, 0], [0, 0], [length - 1, 1]]), [shape[0], shape[1], length, 2 * length])
