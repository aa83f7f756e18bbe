"""Affine maps: `linear_layer` inside models, `Projection` to the vocabulary, and a scale for each hidden unit (LHUC).

Like all layers, `linear_layer` is a function over `get_variable`, so it obeys the rules of tower functions. LHUC
(learning hidden unit contributions) learns its scales on a new domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import affine, matmul, to_float32
from towernmt.models.layers.randomness import StatelessUniform


def linear_layer(x: Tensor, depth: int, name: str, parts: int = 1, use_bias: bool = True,
           activation: Callable[[Tensor], Tensor] | None = None, gains: Sequence[float] = ()) -> Tensor:
    """Apply an affine map to the last dimension, with a kernel initialised as in Glorot & Bengio (2010).

    Args:
        x: `[..., input depth]`.
        depth: output depth of one part.
        name: variable scope.
        parts: number of maps in one product; each is initialised separately.
        use_bias: whether to add a bias, initially zero.
        activation: function applied to the result.
        gains: factor of the initial kernel of each part; empty for 1.

    Returns:
        `[..., parts * depth]` in the compute dtype (see `kernels`).
    """
    input_depth = int(x.shape[-1])
    with tf1.variable_scope(name):
        initializer: Callable[..., Tensor] = StatelessUniform(math.sqrt(6.0 / (input_depth + depth)), "kernel")
        if any(gain != 1.0 for gain in gains):
            initializer = _Scaled(initializer, np.repeat(np.array(gains, np.float32), depth))
        kernel = tf1.get_variable("kernel", [input_depth, parts * depth], initializer=initializer)
        graph_state().maps_in_kernel[kernel.op.name] = parts
        flat = x if x.shape.rank == 2 else tf.reshape(x, [-1, input_depth])
        if use_bias:
            bias = tf1.get_variable("bias", [parts * depth], initializer=tf1.zeros_initializer())
            y = affine(flat, kernel, bias)
        else:
            y = matmul(flat, kernel)
        if activation is not None:
            y = activation(y)
        return y if x.shape.rank == 2 else tf.reshape(y, tf.concat([tf.shape(x)[:-1], [parts * depth]], 0))


class _Scaled:
    """Initializer that multiplies each column of another initializer by a gain."""

    def __init__(self, initializer: Callable[..., Tensor], gains: np.ndarray) -> None:
        self.initializer, self.gains = initializer, gains

    def __call__(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        return self.initializer(shape, dtype) * self.gains


class Projection(NamedTuple):
    """The affine map from the last hidden layer to the logits.

    Attributes:
        kernel: float32 `[target vocabulary, depth]`, the layout of an embedding table, with which it may be shared.
        bias: float32 `[target vocabulary]`.
    """

    kernel: Tensor
    bias: Tensor

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 `[..., target vocabulary]` from `hidden` `[..., depth]`."""
        if hidden.shape.rank == 2:
            return to_float32(self.flat_logits(hidden))
        shape = tf.shape(hidden)
        logits = to_float32(self.flat_logits(tf.reshape(hidden, [-1, self.kernel.shape[1]])))
        size = self.kernel.shape[0] or tf.shape(self.kernel)[0]
        return tf.reshape(logits, tf.concat([shape[:-1], [size]], 0))

    def flat_logits(self, tokens: Tensor) -> Tensor:
        """Return `[tokens, target vocabulary]` in the compute dtype from `tokens` `[tokens, depth]`."""
        return affine(tokens, self.kernel, self.bias, transpose_kernel=True)


VARIABLE = "lhuc"
"""The last part of the name of every such variable, for `train.only=/lhuc$`."""


def lhuc(x: Tensor, name: str) -> Tensor:
    """Scale each unit by 2 * sigmoid(its variable), which is between 0 and 2, and initially 1.

    Swietojanski & Renals (2014); for translation Vilar (2018), who applies it after each sublayer's product.

    Args:
        x: `[..., depth]`.
        name: variable scope; the variable is `name/lhuc`, float32 `[depth]`, initially zero.

    Returns:
        float32 of the shape of `x`.
    """
    return to_float32(x) * lhuc_scale(int(x.shape[-1]), name)


def lhuc_scale(depth: int, name: str) -> Tensor:
    """Return the scales of `lhuc`, float32 `[depth]`, for loops, which cannot create variables."""
    with tf1.variable_scope(name):
        return 2.0 * tf.sigmoid(tf1.get_variable(VARIABLE, [depth], initializer=tf1.zeros_initializer()))
