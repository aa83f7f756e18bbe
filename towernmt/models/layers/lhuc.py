"""Learning hidden unit contributions: a scale for each hidden unit, learned on a new domain (LHUC)."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import to_float32

VARIABLE = "lhuc"
"""The last part of the name of every such variable, for `train.only=/lhuc$`."""


def lhuc(x: Tensor, name: str) -> Tensor:
    """Scale each unit by 2 * sigmoid(its variable), in (0, 2) and 1 at first.

    Swietojanski & Renals (2014); for translation Vilar (2018), who puts it behind each sublayer's product.

    Args:
        x: `[..., depth]`.
        name: variable scope; the variable is `name/lhuc`, float32 `[depth]`, zeros at first.
    Returns:
        float32 of the shape of `x`.
    """
    return to_float32(x) * lhuc_scale(int(x.shape[-1]), name)


def lhuc_scale(depth: int, name: str) -> Tensor:
    """The scales of `lhuc` by themselves, float32 `[depth]`, for loops, in which no variable can be made."""
    with tf1.variable_scope(name):
        return 2.0 * tf.sigmoid(tf1.get_variable(VARIABLE, [depth], initializer=tf1.zeros_initializer()))
