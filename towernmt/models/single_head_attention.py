"""Attention with one head, as recurrent decoders use it: additive, dot and general scores, and coverage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import matmul, to_float32, token_mask
from towernmt.models.layers.attention import MASKED
from towernmt.models.layers.projections import linear_layer
from towernmt.models.layers.randomness import StatelessUniform
from towernmt.models.scan import StepOperation, apply_now

MAX_FERTILITY = 2.0
"""N of Tu et al. (2016): the most target words that one source word may produce."""


class AttentionMemory(NamedTuple):
    """Encoded source for attention; the first dimension of all tensors is batch.

    Attributes:
        keys: `[batch, source length, attention depth]` for additive scores, `[batch, depth, source length]`
            otherwise, as the second factor of a product.
        values: `[batch, source length, depth]`, the annotations.
        bias: float32 `[batch, 1, source length]`, 0 at words and `MASKED` at padding.
        fertility: tuple with float32 `[batch, source length]`; empty without coverage.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor
    fertility: tuple[Tensor, ...]


class AttendedSource(NamedTuple):
    """Result of attention for `[batch, queries]`.

    Attributes:
        context: float32 `[batch, queries, depth]`, the weighted sum of the values.
        weights: float32 `[batch, queries, source length]`.
        coverage: tuple with the coverage after this step, float32 `[batch, queries, source length]`; or empty.
    """

    context: Tensor
    weights: Tensor
    coverage: tuple[Tensor, ...]


class SingleHeadAttention:
    """Weighted sums of annotations h, with weights from their scores with a query s.

    - additive (Bahdanau et al. 2015): v . tanh(W s + U h), with coverage C (Tu et al. 2016) v . tanh(W s + U h + w C)
    - general (Luong et al. 2015): s . (W h) / sqrt(depth of s). The paper has no root, but Adam changes each weight by
      the same amount whatever the depth, so without the root a few updates saturate the softmax.
    - dot: s . h

    Linguistic coverage is the sum of the attention to a source word at earlier steps, divided by its fertility
    N sigmoid(u . h).

    The encoder calls `memory`. The decoder calls `attend` in a loop with `matrices`, `shared` and `operations`, or
    `attend_once` outside a loop.

    Args:
        score: one of `SCORES`.
        query_depth: depth of s.
        depth: inner depth of additive attention.
        coverage: one of `COVERAGES`; only with additive scores.
        name: variable scope.
    """

    def __init__(self, score: str, query_depth: int, depth: int, coverage: str, name: str) -> None:
        self._score, self._query_depth, self._depth, self._coverage = score, query_depth, depth, coverage
        self._name = name

    def memory(self, annotations: Tensor, length: Tensor) -> AttentionMemory:
        """Return the encoded source for `attend`.

        Args:
            annotations: float32 `[batch, source length, depth]`.
            length: int32 `[batch]`.
        """
        bias = (1.0 - tf.cast(token_mask(length, tf.shape(annotations)[1]), tf.float32))[:, None] * MASKED
        keys = annotations
        fertility: tuple[Tensor, ...] = ()
        with tf1.variable_scope(self._name):
            if self._score != "dot":
                size = self._depth if self._score == "additive" else self._query_depth
                keys = to_float32(linear_layer(annotations, size, "memory", use_bias=False))
                if self._score == "general":
                    keys *= size ** -0.5
            if self._coverage != "none":
                words = to_float32(linear_layer(annotations, 1, "fertility", use_bias=False))
                fertility = (MAX_FERTILITY * tf.sigmoid(words[:, :, 0]),)
        return AttentionMemory(keys if self._score == "additive" else tf.transpose(keys, [0, 2, 1]), annotations, bias,
                               fertility)

    def matrices(self, memory: AttentionMemory) -> list[Tensor]:
        """Second factors of the products in `attend`, in their order."""
        if self._score != "additive":
            return [memory.keys, memory.values]
        with tf1.variable_scope(f"{self._name}/query"):
            kernel = _uniform("kernel", [self._query_depth, self._depth], self._query_depth + self._depth)
        return [kernel, memory.values]

    def shared(self, memory: AttentionMemory) -> list[Tensor]:
        """Further tensors of `attend` that have a gradient: keys, vectors and fertility."""
        if self._score != "additive":
            return []
        with tf1.variable_scope(self._name):
            vectors = [_uniform(name, [self._depth], self._depth + 1)
                       for name in ("score", *(["coverage"] if self._coverage != "none" else []))]
        return [memory.keys, *vectors, *memory.fertility]

    @property
    def operations(self) -> list[StepOperation]:
        """Operations that `attend` applies, in order."""
        return [_ADDITIVE_SCORES] if self._score == "additive" and self._coverage == "none" else []

    def attend(self, query: Tensor, coverage: Sequence[Tensor], bias: Tensor, multiply: Callable[[Tensor, int], Tensor],
               shared: Sequence[Tensor], apply: Callable[..., list[Tensor]] = apply_now) -> AttendedSource:
        """Attend from `query` `[batch, queries, query depth]`.

        Args:
            query: queries.
            coverage: list of the coverage before this step, float32 `[batch, queries, source length]`; or empty.
            bias: `AttentionMemory.bias`.
            multiply: `multiply(a, i)` returns float32 `a @ matrices(memory)[i]`.
            shared: `shared(memory)` as tensors of the loop.
            apply: `apply(operation, *args)` returns the outputs of one of `operations`.
        """
        if self._score == "additive":
            scores = self._additive(query, coverage, multiply, shared, apply)
        else:
            scores = multiply(query, 0)
        weights = tf.nn.softmax(scores + bias)                              # [batch, queries, source length]
        covered = tuple(before + weights / shared[3][:, None] for before in coverage)
        return AttendedSource(multiply(weights, 1), weights, covered)

    def _additive(self, query: Tensor, coverage: Sequence[Tensor], multiply: Callable[[Tensor, int], Tensor],
                  shared: Sequence[Tensor], apply: Callable[..., list[Tensor]]) -> Tensor:
        keys, vector = shared[0], shared[1]
        shape = tf.shape(query)
        projected = multiply(tf.reshape(query, [-1, self._query_depth]), 0)
        projected = tf.reshape(projected, [shape[0], shape[1], 1, self._depth])
        if not coverage:
            return apply(_ADDITIVE_SCORES, projected, keys, vector)[0]
        inner = keys[:, None] + projected
        for attention_sum in coverage:
            inner += attention_sum[..., None] * shared[2]
        return _weighted(tf.tanh(inner), vector)

    def attend_once(self, query: Tensor, coverage: Sequence[Tensor], memory: AttentionMemory) -> AttendedSource:
        """Attend outside a loop, from all queries of a sentence (positions or hypotheses)."""
        matrices = self.matrices(memory)
        return self.attend(query, coverage, memory.bias, lambda a, i: to_float32(matmul(a, matrices[i])),
                           self.shared(memory))


def _additive_scores(query: Tensor, keys: Tensor, vector: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return v . tanh(W s + U h), float32 `[batch, queries, source length]`, and no tensors to store.

    Args:
        query: W s, float32 `[batch, queries, 1, depth]`.
        keys: U h, float32 `[batch, source length, depth]`.
        vector: v, float32 `[depth]`.
    """
    return [_weighted(tf.tanh(keys[:, None] + query), vector)], []


def _additive_scores_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], stored: Sequence[Tensor],
                              d_outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients; the largest tensor, `[batch, queries, source length, depth]`, is computed again."""
    (query, keys, vector), (d,) = args, d_outputs
    y = tf.tanh(keys[:, None] + query)
    depth = tf.shape(vector)[0]
    d_inner = tf.raw_ops.TanhGrad(y=y, dy=d[..., None] * vector)
    d_vector = tf.matmul(tf.reshape(d, [1, -1]), tf.reshape(y, [-1, depth]))[0]
    return [tf.reduce_sum(d_inner, 2, keepdims=True), tf.reduce_sum(d_inner, 1), d_vector]


def _weighted(x: Tensor, vector: Tensor) -> Tensor:
    """Return `x` `[a, b, c, depth]` times `vector` `[depth]`: `[a, b, c]`."""
    return tf.reshape(tf.matmul(tf.reshape(x, [-1, vector.shape[0]]), vector[:, None]), tf.shape(x)[:-1])


_ADDITIVE_SCORES = StepOperation(1, 0, _additive_scores, _additive_scores_backward)


def by_sentence(x: Tensor, batch: Tensor) -> Tensor:
    """Reshape `[batch * beam, depth]` to `[batch, beam, depth]`."""
    return tf.reshape(x, [batch, -1, _last(x)])


def by_hypothesis(x: Tensor) -> Tensor:
    """Reshape `[batch, beam, depth]` to `[batch * beam, depth]`."""
    return tf.reshape(x, [-1, _last(x)])


def _last(x: Tensor) -> Tensor:
    return tf.shape(x)[-1] if x.shape[-1] is None else x.shape[-1]


def _uniform(name: str, shape: list[int], fans: int) -> Tensor:
    return tf.convert_to_tensor(tf1.get_variable(
        name, shape, initializer=StatelessUniform(math.sqrt(6.0 / fans), name)))
