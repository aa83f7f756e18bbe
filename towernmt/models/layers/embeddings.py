"""Embedding tables, and the positions that are added to them or seen by self-attention.

A model has one table, one for each language, or three. Attention calls `PairPositions` twice: to `turn` queries and
keys by their positions, and for the terms `between` two positions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from towernmt.core.tensors import Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.kernels import as_ids, matmul, to_float32
from towernmt.models.layers.projections import linear_layer
from towernmt.models.layers.randomness import StatelessNormal, StatelessUniform


def sinusoids(positions: Tensor, depth: int) -> Tensor:
    """Return sinusoidal position signals (Vaswani et al. 2017): sines, then cosines.

    Args:
        positions: int32 or float32 `[length]`.
        depth: depth of the signals, an even number.

    Returns:
        float32 `[length, depth]`, with wavelengths from 2 pi to 10000 * 2 pi.
    """
    rates = np.exp(-math.log(10000.0) * np.arange(depth // 2) / max(1, depth // 2 - 1)).astype(np.float32)
    angles = tf.cast(positions, tf.float32)[:, None] * rates[None, :]
    return tf.concat([tf.sin(angles), tf.cos(angles)], 1)


class PositionTerms(Protocol):
    """Terms that attention adds for the positions of queries and keys, such as a bias for their distance (ALiBi)."""

    def logits(self, query: Tensor) -> Tensor:
        """Return the addend of the logits, broadcast to `[batch, heads, queries, length]`.

        Args:
            query: `[batch, heads, queries, head depth]`. In a step of decoding, the queries are hypotheses, all at the
                last position.
        """

    def context(self, weights: Tensor) -> Tensor | float:
        """Return the addend of the weighted sums of the values, `[batch, heads, queries, head depth]`, or 0.0.

        Args:
            weights: `[batch, heads, queries, length]`.
        """


class PairPositions(Protocol):
    """Positions as self-attention uses them."""

    def turn(self, x: Tensor, first: Tensor) -> Tensor:
        """Rotate queries or keys `[batch, heads, length, head depth]`; `first`, int32 `[]`, is the first position."""

    def between(self, length: Tensor, depth: int, step: bool) -> PositionTerms | None:
        """Return the terms that attention adds for each pair of positions, or None.

        Args:
            length: int32 `[]`, number of keys, at the positions 0 to `length` - 1.
            depth: depth of a head.
            step: whether all queries are at the last position. Otherwise, there is one for each key.
        """


class RotaryPositions:
    """Rotary positions (Su et al. 2021): the product of a query and a key depends only on their distance.

    The rotated pairs of dimensions are (i, i + head depth / 2). The paper has (2i, 2i + 1), which is equivalent, since
    the kernels of queries and keys are learned.
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

    All heads of a layer share the vectors. The variables are created in the enclosing variable scope.

    Attributes:
        reach: largest distance with a separate vector.
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
    """Vectors of all distances from a query to a key.

    Attributes:
        keys: float32 `[distances, head depth]`, added to keys. With one query, the distances are 1 - length to 0;
            otherwise 1 - length to length, of which the last is not used.
        values: float32 `[distances, head depth]`, added to values.
        step: whether there is one query.
    """

    keys: Tensor
    values: Tensor
    step: bool

    def logits(self, query: Tensor) -> Tensor:
        """Return the addend of the logits, `[batch, heads, queries, keys]`; `query` is `[..., queries, depth]`."""
        by_distance = _multiply(query, self.keys, transpose=True)               # [batch, heads, queries, distances]
        return by_distance if self.step else _distances_to_keys(by_distance)

    def context(self, weights: Tensor) -> Tensor:
        """Return the addend `[batch, heads, queries, head depth]` of the mean of the values under `weights`."""
        return _multiply(weights if self.step else _keys_to_distances(weights), self.values, transpose=False)


def _multiply(x: Tensor, table: Tensor, transpose: bool) -> Tensor:
    """Multiply `x` `[batch, heads, queries, depth]` by a matrix, in one product."""
    flat = matmul(tf.reshape(x, [-1, table.shape[1] if transpose else tf.shape(table)[0]]), table,
                  transpose_b=transpose)
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], tf.shape(flat)[1:]], 0))


def _distances_to_keys(x: Tensor) -> Tensor:
    """Return `y[..., i, j] = x[..., i, j - i + length - 1]`: `[..., length, length]` from `[..., length, 2 * length]`.

    Reshaping to rows that are one element shorter moves each row one element further (Huang et al. 2019), without a
    gather.
    """
    shape = tf.shape(x)
    length = shape[2]
    flat = tf.reshape(x, [shape[0], shape[1], -1])[:, :, length - 1:length - 1 + length * (2 * length - 1)]
    return tf.reshape(flat, [shape[0], shape[1], length, 2 * length - 1])[:, :, :, :length]


def _keys_to_distances(x: Tensor) -> Tensor:
    """Invert `_distances_to_keys`, with zeros at distances without a key."""
    shape = tf.shape(x)
    length = shape[2]
    flat = tf.reshape(tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, length - 1]]), [shape[0], shape[1], -1])
    return tf.reshape(tf.pad(flat, [[0, 0], [0, 0], [length - 1, 1]]), [shape[0], shape[1], length, 2 * length])


def embedding_table(vocabulary: int, depth: int, name: str) -> Variable:
    """Return a variable float32 `[vocabulary, depth]`, initially normal with standard deviation 1/sqrt(depth)."""
    return tf1.get_variable(name, [vocabulary, depth], initializer=StatelessNormal(depth ** -0.5, name))


def shared_table(role: str, tie: str, vocabulary: int, depth: int) -> Variable:
    """Return the embedding table of a role, float32 `[vocabulary, depth]`, in the enclosing variable scope.

    Args:
        role: source, target or softmax.
        tie: `all` for one shared table (Press & Wolf 2017: softmax and embeddings), `target` for a table shared by
            target and softmax, or `none`.
        vocabulary: size of the vocabulary.
        depth: depth of the embeddings.
    """
    name = {"all": "embedding", "target": "source_embedding" if role == "source" else "target_embedding",
            "none": f"{role}_embedding"}[tie]
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return embedding_table(vocabulary, depth, name)


def embed_source(table: Tensor | Variable, source: Tensor, settings: Any) -> Tensor:
    """Return the embeddings of the source's words, combined with those of their factors, in the enclosing scope.

    The embeddings of factors are added to the word's (as in Sockeye 2, Domhan et al. 2020), or are
    concatenated with it (Sennrich & Haddow 2016) and mapped back to its depth.

    Args:
        table: of the words, float32 `[vocabulary, depth]`.
        source: int32 `[batch, length]`, or `[batch, length, 1 + factors]`; batch and length in any order.
        settings: a model's `CommonSettings`.

    Returns:
        float32 `[batch, length, depth]`.
    """
    if not settings.source_factor_vocab_sizes:
        return look_up(table, source)
    depth = int(table.shape[1])
    streams = [look_up(table, source[:, :, 0])]
    for factor, size in enumerate(settings.source_factor_vocab_sizes, 1):
        factor_depth = depth if settings.source_factors == "sum" else settings.source_factor_size
        name = f"source_factor_{factor}_embedding"
        factor_table = tf1.get_variable(name, [size, factor_depth], initializer=StatelessNormal(depth ** -0.5, name))
        streams.append(look_up(factor_table, source[:, :, factor]))
    if settings.source_factors == "sum":
        return tf.add_n(streams)
    return to_float32(linear_layer(tf.concat(streams, 2), depth, "source_factors", use_bias=False))


def embed_target(table: Tensor | Variable, target: Tensor, settings: Any) -> Tensor:
    """Return the embeddings of the decoder's input.

    If the setting `start` is "zero", BOS has a zero embedding (as in Marian, Junczys-Dowmunt et al. 2018).

    Args:
        table: float32 `[vocabulary, depth]`.
        target: int32 `[...]`.
        settings: `CommonSettings` of the model.

    Returns:
        float32 `[..., depth]`.
    """
    words = look_up(table, target)
    if settings.start == "bos":
        return words
    return words * tf.cast(tf.not_equal(as_ids(target), BOS), words.dtype)[..., None]


def look_up(table: Tensor | Variable, ids: Tensor) -> Tensor:
    """Return rows of a table: float32 `[..., depth]` for `ids` int32 `[...]`.

    The table is read before the gather. If operations gather from the variable, TensorFlow copies it at other reads.
    """
    return tf.gather(tf.convert_to_tensor(table), ids)


def by_time(ids: Tensor) -> Tensor:
    """Transpose `[batch, length, ...]` to `[length, batch, ...]`."""
    return tf.transpose(ids, [1, 0, 2][:ids.shape.rank])
