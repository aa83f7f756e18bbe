"""Normalisation of a layer's units: layer normalisation and RMSNorm."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.once import is_made_once


def layer_norm(x: Tensor, name: str, epsilon: float = 1e-6) -> Tensor:
    """Layer normalisation (Ba et al. 2016) over the last dimension of `x` float32 `[..., depth]`."""
    depth = int(x.shape[-1])
    with tf1.variable_scope(name):
        scale = tf1.get_variable("scale", [depth], initializer=tf1.ones_initializer())
        offset = tf1.get_variable("offset", [depth], initializer=tf1.zeros_initializer())
    return _standardize(x, epsilon) * scale + offset


def _standardize(x: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / deviation over the last dimension, with the gradient written out: fewer passes over memory."""
    def standard(x: Tensor) -> tuple[Tensor, Tensor]:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon)
        return centred * inverse, inverse

    @tf.custom_gradient
    def standardize(x: Tensor) -> Tensor:
        y, inverse = standard(x)

        def gradient(dy: Tensor) -> Tensor:
            mean_dy = tf.reduce_mean(dy, -1, keepdims=True)
            mean_dy_y = tf.reduce_mean(dy * y, -1, keepdims=True)
            return (dy - mean_dy - y * mean_dy_y) * inverse

        return y, gradient

    return standard(x)[0] if is_made_once() else standardize(x)     # steps of decoding have no gradient


def rms_norm(x: Tensor, name: str, epsilon: float = 1e-6) -> Tensor:
    """Root mean square normalisation (Zhang & Sennrich 2019) over the last dimension of `x` float32 `[..., depth]`."""
    with tf1.variable_scope(name):
        scale = tf1.get_variable("scale", [int(x.shape[-1])], initializer=tf1.ones_initializer())

    @tf.custom_gradient
    def normalize(x: Tensor) -> Tensor:
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + epsilon)
        y = x * inverse
        return y, lambda dy: (dy - y * tf.reduce_mean(dy * y, -1, keepdims=True)) * inverse

    return normalize(x) * scale
