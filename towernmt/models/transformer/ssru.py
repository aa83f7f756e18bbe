"""The Simpler Simple Recurrent Unit, in place of the decoder's self-attention (Kim et al. 2019).

f_t = sigmoid(F x_t + b);  c_t = f_t * c_{t-1} + (1 - f_t) * W x_t;  output_t = relu(c_t).

("From Research to Production and Back: Ludicrously Fast Neural Machine Translation", after the SRU of Lei et al.
2018.) A step of decoding costs the same at every position, and its cache is one vector. Both products are made for
all positions before the loop, which has only the sum to do, forwards and in its gradient. (On a processor the loop
takes a third of the time of the same sum by doubling: 2.3 and 7.6 ms for 24 x 96 x 256.)
"""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import to_float32
from towernmt.models.layers.attention import Attended, Attention, AttentionInputs
from towernmt.models.layers.gains import PLAIN, Gains
from towernmt.models.layers.projections import linear
from towernmt.models.recurrent.scan import loop_over_time


class SSRU(Attention):
    """The unit, in the place of a decoder's self-attention. Its cache is c, float32 `[rows, depth]`.

    Args:
        depth: of the sequence, which has at least one position.
        gains: of the first kernels.
    """

    def __init__(self, depth: int, gains: Gains = PLAIN, name: str = "ssru") -> None:
        super().__init__(name)
        self.depth, self.gains = depth, gains

    def whole(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        forget, new = self._projections(tf.transpose(x, [1, 0, 2]))             # each [length, batch, depth]
        return Attended(tf.transpose(tf.nn.relu(weighted_sums(forget, new)), [1, 0, 2]))

    def empty_cache(self, rows: Tensor) -> Tensor:
        return tf.zeros([rows, self.depth])

    def step(self, x: Tensor, cache: Tensor, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Tensor]:
        forget, new = self._projections(x)
        cell = forget * cache + new
        return Attended(tf.nn.relu(cell)), cell

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The forget gate f and (1 - f) * W x, float32, each of the shape of `x` `[..., depth]`."""
        packed = linear(x, self.depth, "projection", parts=2, use_bias=False, gains=[self.gains.values] * 2)
        value, gate = tf.split(to_float32(packed), 2, -1)
        forget = tf.sigmoid(gate + tf1.get_variable("forget_bias", [self.depth], initializer=tf1.zeros_initializer()))
        return forget, (1.0 - forget) * value


def weighted_sums(forget: Tensor, new: Tensor) -> Tensor:
    """`c[t] = forget[t] * c[t - 1] + new[t]`, from zero, over the first dimension.

    The gradient is the same sum backwards: `d_new[t] = dc[t] + forget[t + 1] * d_new[t + 1]` and
    `d_forget[t] = d_new[t] * c[t - 1]`.

    Args:
        forget: float32 `[length, batch, depth]`.
        new: likewise.
    """

    @tf.custom_gradient
    def sums(forget: Tensor, new: Tensor) -> Tensor:
        cells = _sum_over_time(forget, new, backwards=False)

        def gradient(d_cells: Tensor) -> tuple[Tensor, Tensor]:
            later = tf.concat([forget[1:], tf.zeros_like(forget[:1])], 0)
            d_new = _sum_over_time(later, d_cells, backwards=True)
            before = tf.concat([tf.zeros_like(cells[:1]), cells[:-1]], 0)
            return d_new * before, d_new

        return cells, gradient

    return sums(forget, new)


def _sum_over_time(forget: Tensor, new: Tensor, backwards: bool) -> Tensor:
    def one(arrived: list[Tensor], carry: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        cell = arrived[0] * carry[0] + arrived[1]
        return [cell], [cell]

    return loop_over_time(one, [forget, new], [tf.zeros_like(new[0])], 1, backwards=backwards)[1][0]
