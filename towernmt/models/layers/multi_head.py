"""Multi-head scaled dot-product attention (Vaswani et al. 2017): to the sequence itself, and to the source.

As in the paper the projections have no bias. (One on the keys would have a gradient of exactly zero, since
the softmax does not see it, and Adam would turn the rounding of that zero into steps of full size.)
"""

from __future__ import annotations

from typing import Any

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels.precision import compute_dtype, matmul, to_float32
from towernmt.models.layers.attention import Attended, Attention, AttentionInputs
from towernmt.models.layers.dropout import dropout
from towernmt.models.layers.gains import PLAIN, Gains
from towernmt.models.layers.positions import Distances, PairPositions
from towernmt.models.layers.projections import linear


class SelfAttention(Attention):
    """Attention of a position to its own sequence: all of it in an encoder, up to itself in a decoder.

    Queries, keys and values are one product. The cache is `[rows, steps, 2 * depth]`: keys (turned by their positions)
    and values of the earlier positions.

    Args:
        depth: of the sequence.
        heads: divides depth.
        dropout_rate: on the attention weights.
        positions: what it knows of positions; None for nothing.
        gains: of the first kernels.
    """

    def __init__(self, depth: int, heads: int, dropout_rate: float = 0.0, positions: PairPositions | None = None,
                 gains: Gains = PLAIN, name: str = "self_attention") -> None:
        super().__init__(name)
        self.depth, self.heads, self.dropout_rate = depth, heads, dropout_rate
        self.positions, self.gains = positions, gains

    def whole(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        query, key, value = split_heads(self._project(x), self.heads, parts=3)
        distances = None
        if self.positions is not None:
            query, key = self.positions.turn(query, 0), self.positions.turn(key, 0)
            distances = self.positions.between(tf.shape(x)[1], self.depth // self.heads, step=False)
        context = attend(query, key, value, inputs.bias, self.dropout_rate, distances)
        return Attended(self._output(merge_heads(context)))

    def empty_cache(self, rows: Tensor) -> Tensor:
        return tf.zeros([rows, 0, 2 * self.depth], compute_dtype())

    def step(self, x: Tensor, cache: Tensor, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Tensor]:
        depth, distances = self.depth, None
        qkv = self._project(x)
        query, new = qkv[:, None, :depth], qkv[:, None, depth:]
        if self.positions is not None:
            (both,) = split_heads(qkv[:, None, :2 * depth], 2 * self.heads)     # the heads of query, then of key
            both = merge_heads(self.positions.turn(both, tf.shape(cache)[1]))   # [rows, 1, 2 * depth]
            query, new = both[:, :, :depth], tf.concat([both[:, :, depth:], new[:, :, depth:]], 2)
            distances = self.positions.between(tf.shape(cache)[1] + 1, depth // self.heads, step=True)
        cache = tf.concat([cache, new], 1)
        key, value = split_heads(cache, self.heads, parts=2)    # [rows, heads, steps, head depth]
        context = attend(split_heads(query, self.heads)[0], key, value, None, 0.0, distances)
        return Attended(self._output(tf.reshape(context, [-1, depth]))), cache

    def _project(self, x: Tensor) -> Tensor:
        gains = self.gains
        return linear(x, self.depth, "qkv", parts=3, use_bias=False, gains=[gains.logits] * 2 + [gains.values])

    def _output(self, context: Tensor) -> Tensor:
        return linear(context, self.depth, "output", use_bias=False, gains=[self.gains.values])


class CrossAttention(Attention):
    """Attention of a target position to the source. It needs no cache: keys and values are prepared once a sentence.

    Its weights are the mean over its first heads.

    Args:
        heads: divides the depth of both sequences, which is the same.
        dropout_rate: on the attention weights.
        gains: of the first kernels.
        shown_heads: over how many heads the weights that it gives are the mean.
    """

    def __init__(self, heads: int, dropout_rate: float = 0.0, gains: Gains = PLAIN,
                 name: str = "source_attention", shown_heads: int = 1) -> None:
        super().__init__(name)
        self.heads, self.dropout_rate, self.gains, self.shown_heads = heads, dropout_rate, gains, shown_heads

    def prepare(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each `[batch, heads, source length, head depth]`."""
        packed = linear(source, int(source.shape[-1]), "kv", parts=2, use_bias=False,
                        gains=[self.gains.logits, self.gains.values])
        key, value = split_heads(packed, self.heads, parts=2)
        return key, value

    def whole(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        return self._attend(x, inputs, self.dropout_rate, with_weights)

    def step(self, x: Tensor, cache: Any, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Any]:
        # The hypotheses of a sentence stand where the positions of one stand in training: [batch, beam, depth].
        depth = int(x.shape[-1])
        by_sentence = tf.reshape(x, [tf.shape(inputs.source_bias)[0], -1, depth])
        output, weights = self._attend(by_sentence, inputs, 0.0, with_weights)
        if weights is not None:
            weights = tf.reshape(weights, [-1, tf.shape(weights)[2]])
        return Attended(tf.reshape(output, [-1, depth]), weights), cache

    def _attend(self, x: Tensor, inputs: AttentionInputs, dropout_rate: float, with_weights: bool) -> Attended:
        """Of `x` `[batch, queries, depth]`."""
        depth, (key, value) = int(x.shape[-1]), inputs.source
        (query,) = split_heads(linear(x, depth, "query", use_bias=False, gains=[self.gains.logits]), self.heads)
        context = attend(query, key, value, inputs.source_bias, dropout_rate)
        output = linear(merge_heads(context), depth, "output", use_bias=False, gains=[self.gains.values])
        if not with_weights:
            return Attended(output)
        shown = self.shown_heads
        return Attended(output, _mean_weights(query[:, :shown], key[:, :shown], inputs.source_bias))


def _mean_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """The mean over heads `[batch, heads, ...]`, float32 `[batch, queries, keys]`, without dropout.

    Computed again, since `attend` keeps its own to itself.
    """
    logits = to_float32(matmul(query * int(query.shape[-1]) ** -0.5, key, transpose_b=True))
    return tf.reduce_mean(tf.nn.softmax(logits + bias), axis=1)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_rate: float,
           distances: Distances | None = None) -> Tensor:
    """Weighted sums of the values.

    Args:
        query: `[batch, heads, query length, head depth]`, in the compute dtype as all projections.
        key: `[batch, heads, key length, head depth]`.
        value: as `key`.
        bias: float32, broadcast to `[batch, heads, query length, key length]`; None for none.
        dropout_rate: on the attention weights.
        distances: what is added to keys and values for their distance from the query; None for nothing.
    Returns:
        `[batch, heads, query length, head depth]`.
    """
    query *= int(query.shape[-1]) ** -0.5
    logits = to_float32(matmul(query, key, transpose_b=True))       # [batch, heads, query length, key length]
    if distances is not None:
        logits += to_float32(distances.logits(query))
    if bias is not None:
        logits += bias
    weights = dropout(tf.nn.softmax(logits), dropout_rate, "weights")
    context = matmul(weights, value)
    return context if distances is None else context + distances.context(weights)


def split_heads(x: Tensor, heads: int, parts: int = 1) -> list[Tensor]:
    """Packed projections by part and head.

    Args:
        x: `[batch, length, parts * depth]`.
    Returns:
        for each part `[batch, heads, length, depth / heads]`; one transposition serves all parts, and
        taking them apart along the first dimension copies nothing.
    """
    shape = tf.shape(x)
    size = x.shape[-1] // (parts * heads)
    by_part = tf.reshape(x, [shape[0], shape[1], parts, heads, size])
    return list(tf.unstack(tf.transpose(by_part, [2, 0, 3, 1, 4]), num=parts))


def merge_heads(x: Tensor) -> Tensor:
    """`[batch, heads, length, head depth]` as `[batch, length, heads * head depth]`."""
    shape = tf.shape(x)
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [shape[0], shape[2], x.shape[1] * x.shape[3]])
