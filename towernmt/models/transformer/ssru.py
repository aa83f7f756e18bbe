"""The Simpler Simple Recurrent Unit, in place of the decoder's self-attention (Kim et al. 2019).

f_t = sigmoid(F x_t + b);  c_t = f_t * c_{t-1} + (1 - f_t) * W x_t;  output_t = relu(c_t).

("From Research to Production and Back: Ludicrously Fast Neural Machine Translation", after the SRU of Lei et al.
2018.) A step of decoding costs the same at every position, and its cache is one vector. Both products are made for
all positions before the loop, which has only the sum to do, forwards and in its gradient. (On a processor the loop
takes a third of the time of the same sum by doubling: 2.3 and 7.6 ms for 24 x 96 x 256.)
"""

from __future__ import annotations

from typing import Any

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import to_float32
from towernmt.models.layers.gains import PLAIN, Gains
from towernmt.models.layers.projections import linear
from towernmt.models.recurrent.scan import loop_over_time


def ssru(x: Any, name: str, gains: Gains = PLAIN) -> Any:
    """The unit over all positions of `x` `[batch, length, depth]`: float32 of that shape; length is at least 1."""
    with tf1.variable_scope(name):
        forget, new = _projections(tf.transpose(x, [1, 0, 2]), gains)           # each [length, batch, depth]
        return tf.transpose(tf.nn.relu(weighted_sums(forget, new)), [1, 0, 2])


def ssru_step(x: Any, cell: Any, name: str, gains: Gains = PLAIN) -> tuple[Any, Any]:
    """One position.

    Args:
        x: `[rows, depth]`.
        cell: float32 `[rows, depth]`, c of the position before; zeros at first.
    Returns:
        the output float32 `[rows, depth]`, and the new cell.
    """
    with tf1.variable_scope(name):
        forget, new = _projections(x, gains)
        cell = forget * cell + new
        return tf.nn.relu(cell), cell


def _projections(x: Any, gains: Gains) -> tuple[Any, Any]:
    """The forget gate f and (1 - f) * W x, float32, each of the shape of `x` `[..., depth]`."""
    depth = int(x.shape[-1])
    packed = linear(x, depth, "projection", parts=2, use_bias=False, gains=[gains.values] * 2)
    value, gate = tf.split(to_float32(packed), 2, -1)
    forget = tf.sigmoid(gate + tf1.get_variable("forget_bias", [depth], initializer=tf1.zeros_initializer()))
    return forget, (1.0 - forget) * value


def weighted_sums(forget: Any, new: Any) -> Any:
    """`c[t] = forget[t] * c[t - 1] + new[t]`, from zero, over the first dimension.

    The gradient is the same sum backwards: `d_new[t] = dc[t] + forget[t + 1] * d_new[t + 1]` and
    `d_forget[t] = d_new[t] * c[t - 1]`.

    Args:
        forget: float32 `[length, batch, depth]`.
        new: likewise.
    """

    @tf.custom_gradient
    def sums(forget: Any, new: Any) -> Any:
        cells = _sum_over_time(forget, new, backwards=False)

        def gradient(d_cells: Any) -> tuple[Any, Any]:
            later = tf.concat([forget[1:], tf.zeros_like(forget[:1])], 0)
            d_new = _sum_over_time(later, d_cells, backwards=True)
            before = tf.concat([tf.zeros_like(cells[:1]), cells[:-1]], 0)
            return d_new * before, d_new

        return cells, gradient

    return sums(forget, new)


def _sum_over_time(forget: Any, new: Any, backwards: bool) -> Any:
    def one(arrived: list[Any], carry: list[Any]) -> tuple[list[Any], list[Any]]:
        cell = arrived[0] * carry[0] + arrived[1]
        return [cell], [cell]

    return loop_over_time(one, [forget, new], [tf.zeros_like(new[0])], 1, backwards=backwards)[1][0]
