"""Drawing a token: what may be drawn, and which one a random number means."""

from __future__ import annotations

import math
from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import NEVER

_USUAL_NUCLEUS = 256
"""A nucleus is looked for among so many tokens of a row first, and among all only where these do not hold it."""


class Truncation(NamedTuple):
    """Which tokens are never drawn. Each field acts on what the one before it leaves; the most probable token stays.

    Attributes:
        top_k: draw among so many of the most probable tokens (Fan et al. 2018); 0 for among all.
        top_p: draw among the fewest tokens that have so much of the probability, the nucleus (Holtzman et al. 2020);
            1 for among all. Tokens as probable as the last one of these are with them.
        epsilon: draw no token that is less probable (Hewitt et al. 2022); 0 for among all.
    """

    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0


NO_TRUNCATION = Truncation()


def draw(logits: Tensor, uniform: Tensor, truncation: Truncation) -> Tensor:
    """A token of each row, int32 `[rows]`; 0 where no token may come.

    Args:
        logits: float32 `[rows, vocabulary]`.
        uniform: float64 `[rows]`, from 0 to below 1: the same number and the same logits give the same token.
        truncation: which tokens are left out.
    """
    size, token = logits.shape[1], None
    if 0 < truncation.top_k < size:
        logits, token = tf.math.top_k(logits, truncation.top_k)
    if truncation.top_p < 1.0:
        logits = tf.where(logits >= _edge_of_nucleus(logits, truncation.top_p), logits, NEVER)
    if truncation.epsilon:
        edge = math.log(truncation.epsilon) + tf.reduce_logsumexp(logits, axis=1, keepdims=True)
        highest = tf.reduce_max(logits, axis=1, keepdims=True)
        logits = tf.where(logits >= tf.minimum(edge, highest), logits, NEVER)
    place = _place(logits, uniform)
    return place if token is None else tf.gather(token, place, batch_dims=1)


def _edge_of_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """The lowest logit of the nucleus, float32 `[rows, 1]`."""
    log_sum = tf.reduce_logsumexp(logits, axis=1, keepdims=True)

    def edge(best: Tensor, log_sum: Tensor) -> Tensor:
        before = tf.cumsum(tf.exp(best - log_sum), axis=1, exclusive=True)
        return tf.reduce_min(tf.where(before < top_p, best, math.inf), axis=1, keepdims=True)

    size = int(logits.shape[1])
    best, _ = tf.math.top_k(logits, min(size, _USUAL_NUCLEUS))
    if size <= _USUAL_NUCLEUS:
        return edge(best, log_sum)
    # Rows that are flatter are sorted as a whole.
    flat = tf.where(tf.reduce_sum(tf.exp(best - log_sum), axis=1) < top_p)
    every, _ = tf.math.top_k(tf.gather(logits, flat[:, 0]), size)
    return tf.tensor_scatter_nd_update(edge(best, log_sum), flat, edge(every, tf.gather(log_sum, flat[:, 0])))


def _place(logits: Tensor, uniform: Tensor) -> Tensor:
    """The place at which the distribution function exceeds `uniform`, int32 `[rows]`.

    It is looked for among blocks of the vocabulary and then in the block, so that few sums are made, in float64.
    """
    size = int(logits.shape[1])
    width = math.isqrt(size - 1) + 1
    weight = tf.exp(logits - tf.reduce_max(logits, axis=1, keepdims=True))
    weight = tf.reshape(tf.pad(weight, [[0, 0], [0, -size % width]]), [-1, -(-size // width), width])
    block, rest = _found(tf.reduce_sum(weight, axis=2), uniform)
    place, _ = _found(tf.gather(weight, block, batch_dims=1), rest)
    return block * width + place


def _found(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Which weight a number from 0 to below 1 falls into, and how far into it it does, from 0 to below 1.

    Args:
        weights: float32 `[rows, n]`.
        uniform: float64 `[rows]`.
    """
    weights = tf.cast(weights, tf.float64)
    ends = tf.cumsum(weights, axis=1)
    wanted = uniform[:, None] * ends[:, -1:]
    place = tf.reduce_sum(tf.cast(ends <= wanted, tf.int32), axis=1)
    begin = tf.gather(ends - weights, place, batch_dims=1)
    rest = (wanted[:, 0] - begin) / tf.gather(weights, place, batch_dims=1)
    return place, tf.clip_by_value(rest, 0.0, 1.0 - 2.0 ** -52)
