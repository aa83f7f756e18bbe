"""Multi-head scaled dot-product attention (Vaswani et al. 2017), over whole sentences and step by step.

As in the paper the projections have no bias. (One on the keys would have a gradient of exactly zero, since
the softmax does not see it, and Adam would turn the rounding of that zero into steps of full size.)
"""

from __future__ import annotations

from typing import Any

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import matmul, to_float32
from towernmt.models.layers.dropout import dropout
from towernmt.models.layers.gains import PLAIN, Gains
from towernmt.models.layers.positions import Distances, PairPositions
from towernmt.models.layers.projections import linear

MASKED = -1e9
"""Added to the logits of places that must not be attended to."""


def padding_bias(length: Any, longest: Any) -> Any:
    """float32 `[batch, 1, 1, longest]`: 0 at tokens, MASKED at padding, from `length` int32 `[batch]`."""
    mask = tf.sequence_mask(length, longest, dtype=tf.float32)
    return ((1.0 - mask) * MASKED)[:, None, None, :]


def causal_bias(length: Any) -> Any:
    """float32 `[1, 1, length, length]`: 0 at and before each position, MASKED after it."""
    positions = tf.range(length)
    later = tf.cast(positions[None, :] > positions[:, None], tf.float32)
    return (later * MASKED)[None, None]


def split_heads(x: Any, heads: int, parts: int = 1) -> list[Any]:
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


def merge_heads(x: Any) -> Any:
    """`[batch, heads, length, head depth]` as `[batch, length, heads * head depth]`."""
    shape = tf.shape(x)
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [shape[0], shape[2], x.shape[1] * x.shape[3]])


def attend(query: Any, key: Any, value: Any, bias: Any, dropout_rate: float,
           distances: Distances | None = None) -> Any:
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


def self_attention(x: Any, bias: Any, heads: int, dropout_rate: float, name: str,
                   positions: PairPositions | None = None, gains: Gains = PLAIN) -> Any:
    """Self-attention over `x` `[batch, length, depth]`; queries, keys and values in one product."""
    depth = int(x.shape[-1])
    distances = None
    with tf1.variable_scope(name):
        packed = linear(x, depth, "qkv", parts=3, use_bias=False, gains=[gains.logits] * 2 + [gains.values])
        query, key, value = split_heads(packed, heads, parts=3)
        if positions is not None:
            query, key = positions.turn(query, 0), positions.turn(key, 0)
            distances = positions.between(tf.shape(x)[1], depth // heads, step=False)
        context = attend(query, key, value, bias, dropout_rate, distances)
        return linear(merge_heads(context), depth, "output", use_bias=False, gains=[gains.values])


def self_attention_step(x: Any, cache: Any, heads: int, name: str, positions: PairPositions | None = None,
                        gains: Gains = PLAIN) -> tuple[Any, Any]:
    """Self-attention of one new position to itself and all before it.

    Args:
        x: `[rows, depth]`.
        cache: `[rows, steps, 2 * depth]`, keys (turned by their positions) and values of the earlier positions.
    Returns:
        `[rows, depth]`, and the cache with one more step.
    """
    depth = int(x.shape[-1])
    distances = None
    with tf1.variable_scope(name):
        qkv = linear(x, depth, "qkv", parts=3, use_bias=False, gains=[gains.logits] * 2 + [gains.values])
        query, new = qkv[:, None, :depth], qkv[:, None, depth:]
        if positions is not None:
            (both,) = split_heads(qkv[:, None, :2 * depth], 2 * heads)          # the heads of query, then of key
            both = merge_heads(positions.turn(both, tf.shape(cache)[1]))        # [rows, 1, 2 * depth]
            query, new = both[:, :, :depth], tf.concat([both[:, :, depth:], new[:, :, depth:]], 2)
            distances = positions.between(tf.shape(cache)[1] + 1, depth // heads, step=True)
        cache = tf.concat([cache, new], 1)
        key, value = split_heads(cache, heads, parts=2)         # [rows, heads, steps, head depth]
        context = attend(split_heads(query, heads)[0], key, value, None, 0.0, distances)   # [rows, heads, 1, depth]
        context = tf.reshape(context, [-1, depth])
        return linear(context, depth, "output", use_bias=False, gains=[gains.values]), cache


def memory_keys_values(memory: Any, heads: int, name: str, gains: Gains = PLAIN) -> tuple[Any, Any]:
    """Keys and values of the source for attention by a decoder layer.

    Args:
        memory: `[batch, source length, depth]`.
    Returns:
        two `[batch, heads, source length, head depth]`.
    """
    with tf1.variable_scope(name):
        packed = linear(memory, int(memory.shape[-1]), "kv", parts=2, use_bias=False,
                        gains=[gains.logits, gains.values])
        key, value = split_heads(packed, heads, parts=2)
        return key, value


def source_attention(x: Any, keys_values: tuple[Any, Any], bias: Any, heads: int, dropout_rate: float,
                     name: str, gains: Gains = PLAIN) -> Any:
    """Attention from `x` `[batch, queries, depth]` to the source.

    The queries may be target positions or, in stepwise decoding, the hypotheses of a sentence: keys and
    values are there once a sentence, not once a hypothesis.
    """
    return _source_attention(x, keys_values, bias, heads, dropout_rate, name, gains)[0]


def source_attention_with_weights(x: Any, keys_values: tuple[Any, Any], bias: Any, heads: int, dropout_rate: float,
                                  name: str, gains: Gains = PLAIN) -> tuple[Any, Any]:
    """`source_attention`, and the weights of its first head, float32 `[batch, queries, source length]`.

    They are without dropout, and computed a second time for this head alone: `attend` keeps its own to itself.
    """
    y, query = _source_attention(x, keys_values, bias, heads, dropout_rate, name, gains)
    key = keys_values[0]
    logits = to_float32(matmul(query[:, 0] * int(query.shape[-1]) ** -0.5, key[:, 0], transpose_b=True))
    return y, tf.nn.softmax(logits + bias[:, 0])


def _source_attention(x: Any, keys_values: tuple[Any, Any], bias: Any, heads: int, dropout_rate: float, name: str,
                      gains: Gains) -> tuple[Any, Any]:
    """The result, and the queries `[batch, heads, queries, head depth]`."""
    depth = int(x.shape[-1])
    with tf1.variable_scope(name):
        (query,) = split_heads(linear(x, depth, "query", use_bias=False, gains=[gains.logits]), heads)
        context = attend(query, keys_values[0], keys_values[1], bias, dropout_rate)
        return linear(merge_heads(context), depth, "output", use_bias=False, gains=[gains.values]), query
