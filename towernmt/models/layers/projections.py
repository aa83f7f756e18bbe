"""Affine maps: `linear`, inside of models, and `Projection`, from the last hidden layer to the logits.

As all layers here, `linear` is a function over `get_variable`: it obeys the rules of tower functions by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import affine, matmul, to_float32
from towernmt.models.layers.initializers import StatelessUniform


def linear(x: Tensor, depth: int, name: str, parts: int = 1, use_bias: bool = True,
           activation: Callable[[Tensor], Tensor] | None = None, gains: Sequence[float] = ()) -> Tensor:
    """An affine map of the last dimension, kernel initialised as Glorot & Bengio (2010).

    Args:
        x: `[..., input depth]`.
        depth: output depth of one part.
        name: variable scope.
        parts: how many maps are packed side by side into one product; each is initialised as if alone.
        use_bias: add a bias, zero at first.
        activation: applied to the result.
        gains: what the first kernel of each part is multiplied with; empty for 1.
    Returns:
        `[..., parts * depth]` in the compute dtype (see `precision.py`).
    """
    input_depth = int(x.shape[-1])
    with tf1.variable_scope(name):
        initializer: Callable[..., Tensor] = StatelessUniform(math.sqrt(6.0 / (input_depth + depth)), "kernel")
        if any(gain != 1.0 for gain in gains):
            initializer = _Scaled(initializer, np.repeat(np.array(gains, np.float32), depth))
        kernel = tf1.get_variable("kernel", [input_depth, parts * depth], initializer=initializer)
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
    """First values, each column multiplied by its gain."""

    def __init__(self, initializer: Callable[..., Tensor], gains: np.ndarray) -> None:
        self.initializer, self.gains = initializer, gains

    def __call__(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        return self.initializer(shape, dtype) * self.gains


class Projection(NamedTuple):
    """The affine map from the last hidden layer to the logits.

    Attributes:
        kernel: float32 `[target vocabulary, depth]`, the layout of an embedding, so that it can be one.
        bias: float32 `[target vocabulary]`.
    """

    kernel: Tensor
    bias: Tensor

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[..., target vocabulary]` of `hidden` `[..., depth]`."""
        if hidden.shape.rank == 2:
            return to_float32(self.flat_logits(hidden))
        shape = tf.shape(hidden)
        logits = to_float32(self.flat_logits(tf.reshape(hidden, [-1, self.kernel.shape[1]])))
        size = self.kernel.shape[0] or tf.shape(self.kernel)[0]
        return tf.reshape(logits, tf.concat([shape[:-1], [size]], 0))

    def flat_logits(self, tokens: Tensor) -> Tensor:
        """`[tokens, target vocabulary]` in the compute dtype, of `tokens` `[tokens, depth]`."""
        return affine(tokens, self.kernel, self.bias, transpose_kernel=True)
