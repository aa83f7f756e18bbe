"""Learning hidden unit contributions: a scale for each hidden unit, learned on a new domain (LHUC)."""

from __future__ import annotations

from typing import Any

from towernmt.models.precision import to_float32
from towernmt.tf_compat import tf, tf1

VARIABLE = "lhuc"
"""The last part of the name of every such variable, for `train.only=/lhuc$`."""


def lhuc(x: Any, name: str) -> Any:
    """Scale each unit by 2 * sigmoid(its variable), in (0, 2) and 1 at first.

    Swietojanski & Renals (2014); for translation Vilar (2018), who puts it behind each sublayer's product.

    Args:
        x: `[..., depth]`.
        name: variable scope; the variable is `name/lhuc`, float32 `[depth]`, zeros at first.
    Returns:
        float32 of the shape of `x`.
    """
    with tf1.variable_scope(name):
        scale = tf1.get_variable(VARIABLE, [int(x.shape[-1])], initializer=tf1.zeros_initializer())
    return to_float32(x) * (2.0 * tf.sigmoid(scale))
