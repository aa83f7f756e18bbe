"""The feed-forward layer of the Transformer: with ReLU (Vaswani et al. 2017), swish, GELU, or gated (Shazeer 2020).

Swish is `x * sigmoid(x)` (Ramachandran et al. 2017); of GELU there are the two approximations of Hendrycks & Gimpel
(2016): `x * sigmoid(1.702 x)`, and the one with a hyperbolic tangent.
"""

from __future__ import annotations

from collections.abc import Callable

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import relu, to_float32
from towernmt.models.layers.dropout import dropout
from towernmt.models.layers.gains import PLAIN, Gains
from towernmt.models.layers.projections import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "swish": tf.nn.silu,
    "gelu_sigmoid": lambda x: x * tf.sigmoid(1.702 * x),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
}
"""By name: what a layer without a gate has inside."""
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": tf.sigmoid,
    "swiglu": tf.nn.silu,
    "geglu": tf.nn.gelu,
}
"""By name: what becomes of the half that is the gate."""


def feed_forward(x: Tensor, filter_size: int, dropout_rate: float, kind: str = "relu", gains: Gains = PLAIN) -> Tensor:
    """`outer(act(inner x))`, or gated `outer(gate(a) * b)` with a and b side by side in `inner x`.

    All maps have a bias, where Shazeer (2020) has none.

    Args:
        x: `[..., depth]`.
        filter_size: depth inside; a gated layer has three maps of it where the plain one has two.
        dropout_rate: inside.
        kind: one of `choices.FEED_FORWARDS`.
    Returns:
        `[..., depth]`, in the compute dtype.
    """
    with tf1.variable_scope("feed_forward"):
        if kind in ACTIVATIONS:
            hidden = linear(x, filter_size, "inner", activation=ACTIVATIONS[kind], gains=[gains.values])
        else:
            packed = linear(x, filter_size, "inner", parts=2, gains=[gains.values] * 2)
            gate, value = tf.split(to_float32(packed), 2, -1)
            hidden = GATES[kind](gate) * value
        return linear(dropout(hidden, dropout_rate, "inner"), int(x.shape[-1]), "outer", gains=[gains.values])
