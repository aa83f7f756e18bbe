"""Layers as functions over `get_variable`: they obey the rules of tower functions by construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import affine, matmul
from towernmt.models.layers.randomness import StatelessNormal, StatelessUniform


def linear(x: Any, depth: int, name: str, parts: int = 1, use_bias: bool = True,
           activation: Callable[[Any], Any] | None = None, gains: Sequence[float] = ()) -> Any:
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
        initializer: Callable[..., Any] = StatelessUniform(math.sqrt(6.0 / (input_depth + depth)), "kernel")
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

    def __init__(self, initializer: Callable[..., Any], gains: np.ndarray) -> None:
        self.initializer, self.gains = initializer, gains

    def __call__(self, shape: Any, dtype: Any = tf.float32, partition_info: Any = None) -> Any:
        return self.initializer(shape, dtype) * self.gains


def layer_norm(x: Any, name: str, epsilon: float = 1e-6) -> Any:
    """Layer normalisation (Ba et al. 2016) over the last dimension of `x` float32 `[..., depth]`."""
    depth = int(x.shape[-1])
    with tf1.variable_scope(name):
        scale = tf1.get_variable("scale", [depth], initializer=tf1.ones_initializer())
        offset = tf1.get_variable("offset", [depth], initializer=tf1.zeros_initializer())
    return _standardize(x, epsilon) * scale + offset


def _standardize(x: Any, epsilon: float) -> Any:
    """(x - mean) / deviation over the last dimension, with the gradient written out: fewer passes over memory."""

    @tf.custom_gradient
    def standardize(x: Any) -> Any:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon)
        y = centred * inverse

        def gradient(dy: Any) -> Any:
            mean_dy = tf.reduce_mean(dy, -1, keepdims=True)
            mean_dy_y = tf.reduce_mean(dy * y, -1, keepdims=True)
            return (dy - mean_dy - y * mean_dy_y) * inverse

        return y, gradient

    return standardize(x)


def rms_norm(x: Any, name: str, epsilon: float = 1e-6) -> Any:
    """Root mean square normalisation (Zhang & Sennrich 2019) over the last dimension of `x` float32 `[..., depth]`."""
    with tf1.variable_scope(name):
        scale = tf1.get_variable("scale", [int(x.shape[-1])], initializer=tf1.ones_initializer())

    @tf.custom_gradient
    def normalize(x: Any) -> Any:
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + epsilon)
        y = x * inverse
        return y, lambda dy: (dy - y * tf.reduce_mean(dy * y, -1, keepdims=True)) * inverse

    return normalize(x) * scale


def embedding_table(vocabulary: int, depth: int, name: str) -> Any:
    """A variable float32 `[vocabulary, depth]`, normal with deviation 1/sqrt(depth) at first."""
    return tf1.get_variable(name, [vocabulary, depth], initializer=StatelessNormal(depth ** -0.5, name))


def sinusoids(positions: Any, depth: int) -> Any:
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
