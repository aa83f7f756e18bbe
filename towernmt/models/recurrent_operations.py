"""The operations of a step of a GRU and of an LSTM, with their gradients, for the loop of `scan`."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.scan import StepOperation


def _gates_of_gru(z: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    reset, update = tf.split(tf.sigmoid(z), 2, 1)
    return [reset * h, update], [reset]


def _gates_of_gru_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], stored: Sequence[Tensor],
                           d_outputs: Sequence[Tensor]) -> list[Tensor]:
    (_, h), (_, update), (reset,), (d_reset_state, d_update) = args, outputs, stored, d_outputs
    d_z = tf.concat([_d_sigmoid(reset, d_reset_state * h), _d_sigmoid(update, d_update)], 1)
    return [d_z, d_reset_state * reset]


def _output_of_gru(z: Tensor, update: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    candidate = tf.tanh(z)
    change = h - candidate
    return [candidate + update * change], [candidate, change]


def _output_of_gru_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], stored: Sequence[Tensor],
                            d_outputs: Sequence[Tensor]) -> list[Tensor]:
    (_, update, _), (candidate, change), (d,) = args, stored, d_outputs
    d_h = d * update
    return [_d_tanh(candidate, d - d_h), d * change, d_h]


def _lstm(z: Tensor, c: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    i, f, g, o = tf.split(z, 4, 1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    c = f * c + i * g
    squashed_cell = tf.tanh(c)
    return [c, o * squashed_cell], [i, f, g, o, squashed_cell]


def _lstm_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], stored: Sequence[Tensor],
                   d_outputs: Sequence[Tensor]) -> list[Tensor]:
    (_, c), (i, f, g, o, squashed_cell), (d_c, d_h) = args, stored, d_outputs
    d_c += _d_tanh(squashed_cell, d_h * o)
    d_z = [_d_sigmoid(i, d_c * g), _d_sigmoid(f, d_c * c), _d_tanh(g, d_c * i), _d_sigmoid(o, d_h * squashed_cell)]
    return [tf.concat(d_z, 1), d_c * f]


def _d_sigmoid(y: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of x from the gradient `d` of y = sigmoid(x)."""
    return tf.raw_ops.SigmoidGrad(y=y, dy=d)


def _d_tanh(y: Tensor, d: Tensor) -> Tensor:
    return tf.raw_ops.TanhGrad(y=y, dy=d)


GATES_OF_GRU = StepOperation(2, 1, _gates_of_gru, _gates_of_gru_backward)
OUTPUT_OF_GRU = StepOperation(1, 2, _output_of_gru, _output_of_gru_backward)
LSTM = StepOperation(2, 5, _lstm, _lstm_backward)
