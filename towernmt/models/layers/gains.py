"""First values for deep stacks: how much smaller than Glorot's a layer's kernels are, and how its residual is scaled.

- `glorot`: Glorot & Bengio (2010) in every layer.
- `depth_scaled`: layer l (from 1) of a stack begins with kernels divided by sqrt(l), which keeps the variance of the
  residual stream, and with it the gradients of deep post-norm stacks (DS-Init; Zhang, Titov & Sennrich 2019).
- `deepnorm`: post-norm whose residual is multiplied by alpha, with kernels of values, outputs and feed-forwards
  multiplied by beta (Wang et al. 2022, "DeepNet", the formulas for an encoder with a decoder).
"""

from __future__ import annotations

from typing import NamedTuple

INITIALIZATIONS = ("glorot", "depth_scaled", "deepnorm")


class Gains(NamedTuple):
    """What a layer multiplies.

    Attributes:
        logits: the first kernels of queries and keys.
        values: the first kernels of values, outputs and feed-forwards.
        residual: the residual, always.
    """

    logits: float = 1.0
    values: float = 1.0
    residual: float = 1.0


PLAIN = Gains()
"""Nothing but Glorot's initialisation."""


def layer_gains(initialization: str, stack: str, layer: int, encoder_layers: int, decoder_layers: int) -> Gains:
    """The gains of a layer.

    Args:
        initialization: one of `INITIALIZATIONS`.
        stack: "encoder" or "decoder".
        layer: its number in the stack, from 0.
    """
    if initialization == "depth_scaled":
        gain = (layer + 1) ** -0.5
        return Gains(gain, gain)
    if initialization == "deepnorm":
        if stack == "encoder":
            size = (encoder_layers ** 4 * decoder_layers) ** (1 / 16)
            return Gains(values=0.87 / size, residual=0.81 * size)
        return Gains(values=(12 * decoder_layers) ** -0.25, residual=(3 * decoder_layers) ** 0.25)
    return PLAIN
