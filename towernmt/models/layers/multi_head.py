"""Multi-head scaled dot-product attention (Vaswani et al. 2017), to itself and to the source.

As in the paper the projections have no bias by default; if biases are requested, queries and outputs have one. (A
bias on the keys would have a gradient of exactly zero, since the softmax does not see it, and Adam would turn the
rounding of that zero into steps of full size; a bias on the values adds a constant to the context, which the output's
bias can express.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Nest, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import compute_dtype, matmul, on_gpu, to_float32
from towernmt.models.layers.attention import Attended, Attention, AttentionInputs, StepPosition, empty_values
from towernmt.models.layers.embeddings import PairPositions, PositionTerms
from towernmt.models.layers.projections import linear_layer
from towernmt.models.layers.randomness import dropout
from towernmt.models.model_settings import PLAIN, Gains


class SelfAttention(Attention):
    """Attention of a position to its own sequence: all of it in an encoder, up to itself in a decoder.

    Queries, keys and values are one product. The keys (turned by their positions) and values of the earlier positions
    are kept in `StepBlocks`.

    Args:
        depth: depth of the sequence.
        heads: number of heads; divides the depth.
        dropout_rate: dropout on the attention weights.
        positions: relative or rotary positions; None if positions are added to the embeddings.
        gains: factors of the initial kernels.
        name: name of the variable scope.
        biases: whether queries and output have a bias.
    """

    def __init__(self, depth: int, heads: int, dropout_rate: float = 0.0, positions: PairPositions | None = None,
                 gains: Gains = PLAIN, name: str = "self_attention", biases: bool = False) -> None:
        super().__init__(name)
        self.depth, self.heads, self.dropout_rate = depth, heads, dropout_rate
        self.positions, self.gains, self.biases = positions, gains, biases

    def attend_sequence(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        query, key, value = split_heads(self._project(x), self.heads, parts=3)
        query, terms = self._biased(query), None
        if self.positions is not None:
            query, key = self.positions.turn(query, 0), self.positions.turn(key, 0)
            terms = self.positions.between(tf.shape(x)[1], self.depth // self.heads, step=False)
        context = attend(query, key, value, inputs.bias, self.dropout_rate, terms)
        return Attended(self._output(merge_heads(context)))

    def empty_values(self, batch: Tensor, beam: int) -> list[Tensor]:
        """Return memory for keys and for values; see `Attention.empty_values`."""
        return [empty_values(batch, beam, self.heads, self.depth // self.heads, compute_dtype()) for _ in range(2)]

    def step(self, x: Tensor, cache: list[Tensor], inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, list[Tensor]]:
        position, terms = inputs.step_position, None
        if position is None:
            raise ValueError("SelfAttention.step needs inputs.step_position, where a step of decoding writes.")
        query, key, value = _heads_of_step(self._project(x), 3, position.beam, self.heads)
        query = self._biased(query)
        if self.positions is not None:
            query, key = (_turned(self.positions, vector, position.step) for vector in (query, key))
            of_positions = self.positions.between(position.step + 1, self.depth // self.heads, step=True)
            terms = None if of_positions is None else _BlockTerms(of_positions, position)
        keys, values = (position.insert(stored, current) for stored, current in zip(cache, (key, value), strict=True))
        context = attend(query, keys, values, position.bias, 0.0, terms)
        return Attended(self._output(_rows_of_step(context))), [keys, values]

    def _project(self, x: Tensor) -> Tensor:
        gains = self.gains
        return linear_layer(x, self.depth, "qkv", parts=3, use_bias=False, gains=[gains.logits] * 2 + [gains.values])

    def _biased(self, query: Tensor) -> Tensor:
        """Return `query` `[batch, heads, queries, head depth]`, with a bias if biases are requested."""
        if not self.biases:
            return query
        bias = tf1.get_variable("query_bias", [self.depth], initializer=tf1.zeros_initializer())
        return query + tf.cast(tf.reshape(bias, [self.heads, 1, self.depth // self.heads]), query.dtype)

    def _output(self, context: Tensor) -> Tensor:
        return linear_layer(context, self.depth, "output", use_bias=self.biases, gains=[self.gains.outputs])


class CrossAttention(Attention):
    """Attention of target positions to the source. Keys and values are prepared once per sentence, without a cache.

    Args:
        heads: number of heads; divides the depth of both sequences, which must be equal.
        dropout_rate: dropout on the attention weights.
        gains: factors of the initial kernels.
        name: name of the variable scope.
        shown_heads: the returned weights are the mean over the first `shown_heads` heads.
        biases: whether queries and output have a bias.
    """

    def __init__(self, heads: int, dropout_rate: float = 0.0, gains: Gains = PLAIN,
                 name: str = "source_attention", shown_heads: int = 1, biases: bool = False) -> None:
        super().__init__(name)
        self.heads, self.dropout_rate, self.gains, self.shown_heads = heads, dropout_rate, gains, shown_heads
        self.biases = biases

    def prepare(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each `[batch, heads, source length, head depth]`."""
        packed = linear_layer(source, int(source.shape[-1]), "kv", parts=2, use_bias=False,
                        gains=[self.gains.logits, self.gains.values])
        key, value = split_heads(packed, self.heads, parts=2)
        return key, value

    def attend_sequence(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        key, value = inputs.source
        (query,) = split_heads(self._query(x), self.heads)
        output = self._output(merge_heads(attend(query, key, value, inputs.source_bias, self.dropout_rate)))
        return Attended(output, self._mean_attention(query, inputs) if with_weights else None)

    def step(self, x: Tensor, cache: Nest, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Nest]:
        # The hypotheses of a sentence take the dimension of the positions in training: [batch, heads, beam, depth].
        depth, (key, value) = int(x.shape[-1]), inputs.source
        by_head = tf.stack([tf.shape(inputs.source_bias)[0], -1, self.heads, depth // self.heads])
        query = tf.transpose(tf.reshape(self._query(x), by_head), [0, 2, 1, 3])
        output = self._output(_rows_of_step(attend(query, key, value, inputs.source_bias, 0.0)))
        if not with_weights:
            return Attended(output), cache
        weights = self._mean_attention(query, inputs)
        return Attended(output, tf.reshape(weights, [-1, tf.shape(weights)[2]])), cache

    def _query(self, x: Tensor) -> Tensor:
        return linear_layer(x, int(x.shape[-1]), "query", use_bias=self.biases, gains=[self.gains.logits])

    def _output(self, context: Tensor) -> Tensor:
        return linear_layer(context, int(context.shape[-1]), "output", use_bias=self.biases,
                            gains=[self.gains.outputs])

    def _mean_attention(self, query: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the weights of the shown heads, `[batch, queries, source length]`."""
        key, heads = inputs.source[0], self.shown_heads
        return _mean_weights(query[:, :heads], key[:, :heads], inputs.source_bias)


def _mean_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Return the mean of the weights over heads, float32 `[batch, queries, keys]`, without dropout.

    `attend` does not return its weights, so they are computed again.
    """
    logits = to_float32(matmul(query * int(query.shape[-1]) ** -0.5, key, transpose_b=True))
    return tf.reduce_mean(tf.nn.softmax(logits + bias), axis=1)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_rate: float,
           terms: PositionTerms | None = None) -> Tensor:
    """Return the sums of the values, weighted by attention.

    Args:
        query: `[batch, heads, query length, head depth]`, in the compute dtype.
        key: `[batch, heads, key length, head depth]`.
        value: tensor of the shape of `key`.
        bias: float32, broadcast to `[batch, heads, query length, key length]`, or None.
        dropout_rate: dropout on the attention weights.
        terms: terms for the positions of queries and keys, or None.

    Returns:
        `[batch, heads, query length, head depth]`.
    """
    query *= int(query.shape[-1]) ** -0.5
    logits = to_float32(matmul(query, key, transpose_b=True))       # [batch, heads, query length, key length]
    if terms is not None:
        logits += to_float32(terms.logits(query))
    if bias is not None:
        logits += bias
    weights = dropout(tf.nn.softmax(logits), dropout_rate, "weights")
    context = matmul(weights, value)
    return context if terms is None else context + terms.context(weights)


class _BlockTerms(NamedTuple):
    """Terms of a decoding step for keys in `StepBlocks`: one key of each hypothesis for each position.

    Attributes:
        terms: the terms for one key at each position up to the step.
        position: the step.
    """

    terms: PositionTerms
    position: StepPosition

    def logits(self, query: Tensor) -> Tensor:
        """Return the addend of the logits, `[..., beam, capacity * beam]`; those of later positions are masked."""
        addend = self.terms.logits(query)
        later = self.position.capacity - self.position.step - 1
        padded = tf.pad(addend, [*[[0, 0]] * (addend.shape.rank - 1), [0, later]])
        return tf.repeat(padded, self.position.beam, -1)

    def context(self, weights: Tensor) -> Tensor | float:
        """Return the addend of the sums of the values; a hypothesis gives weight to at most one key of a position."""
        by_key = tf.reshape(weights, tf.concat([tf.shape(weights)[:-1], [-1, self.position.beam]], 0))
        return self.terms.context(tf.reduce_sum(by_key, -1)[..., :self.position.step + 1])


def _heads_of_step(x: Tensor, parts: int, beam: int, heads: int) -> list[Tensor]:
    """Split `[rows, parts * depth]` into a tensor `[batch, heads, beam, head depth]` for each part."""
    size = x.shape[1] // (parts * heads)
    by_part = tf.reshape(x, [-1, beam, parts, heads, size])
    return list(tf.unstack(tf.transpose(by_part, [2, 0, 3, 1, 4])))


def _rows_of_step(x: Tensor) -> Tensor:
    """Reshape `[batch, heads, beam, head depth]` to `[rows, heads * head depth]`."""
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [-1, x.shape[1] * x.shape[3]])


def _turned(positions: PairPositions, x: Tensor, step: Tensor) -> Tensor:
    """Return `x` `[batch, heads, beam, head depth]` of one step, rotated by its position."""
    beam, size = x.shape[2], x.shape[3]
    one_by_one = tf.reshape(x, [-1, x.shape[1] * beam, 1, size])
    return tf.reshape(positions.turn(one_by_one, step), [-1, x.shape[1], beam, size])


def split_heads(x: Tensor, heads: int, parts: int = 1) -> list[Tensor]:
    """Split packed projections by part and head.

    Args:
        x: `[batch, length, parts * depth]`.
        heads: number of heads.
        parts: number of packed projections.

    Returns:
        For each part a tensor `[batch, heads, length, depth / heads]`. One transposition serves all parts.
    """
    length, size = tf.shape(x)[1], x.shape[-1] // (parts * heads)
    by_part = _rearranged(x, [-1, length, parts, heads, size], [2, 0, 3, 1, 4], [parts, -1, heads, length, size])
    return list(tf.unstack(by_part, num=parts))


def merge_heads(x: Tensor) -> Tensor:
    """Reshape `[batch, heads, length, head depth]` to `[batch, length, heads * head depth]`."""
    length, heads, size = tf.shape(x)[2], x.shape[1], x.shape[3]
    return _rearranged(x, [-1, heads, length, size], [0, 2, 1, 3], [-1, length, heads * size])


COMPLEX128_BYTES = 16


def _rearranged(x: Tensor, before: list[Any], order: list[int], after: list[Any]) -> Tensor:
    """Return `reshape(transpose(reshape(x, before), order), after)`, where `order` keeps the last dimension.

    Each reshape either keeps the shape or changes the number of dimensions.

    TensorFlow's kernel for GPUs computes an index for each element that it moves, unless two groups of dimensions
    change places. On an H100, such a transposition reached at most a fifth of the bandwidth of the memory, by estimate.
    So a GPU moves elements of 16 bytes here: complex numbers with the bits of several values. XLA has no such
    reinterpretation, and needs none.
    """
    values = COMPLEX128_BYTES // x.dtype.size
    if not on_gpu(x) or graph_state().settings.xla or before[-1] % values:
        y = tf.transpose(x if len(before) == x.shape.rank else tf.reshape(x, before), order)
        return y if len(after) == y.shape.rank else tf.reshape(y, after)
    words = [*before[:-1], before[-1] // values]
    turned_words, inverse_order = [words[axis] for axis in order], [order.index(axis) for axis in range(len(order))]

    def moved_words(x: Tensor, words: list[Any], order: list[int], shape: Any) -> Tensor:
        as_words = tf.bitcast(tf.reshape(x, [*words, values]), tf.complex128)
        return tf.reshape(tf.bitcast(tf.transpose(as_words, order), x.dtype), shape)

    @tf.custom_gradient
    def moved(x: Tensor) -> Tensor:
        return moved_words(x, words, order, after), lambda dy: moved_words(dy, turned_words, inverse_order, tf.shape(x))

    return moved(x)
