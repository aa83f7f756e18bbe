"""GRU and LSTM layers over complete sequences in TensorFlow's fused kernels.

In TensorFlow 2.21 the gradient that is registered for `BlockLSTMV2` calls the kernel of `BlockLSTM`, whose gates have
another order, and `GRUBlockCell` has no gradient: both are defined here. For a batch without rows the gradient kernel
does not write the gradients of the weights, which then hold arbitrary values: this module sets them.
"""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import product_over_rows
from towernmt.models.scan import loop_over_time


def block_lstm(x: Tensor, start: list[Tensor], kernel: Tensor, bias: Tensor) -> list[Tensor]:
    """Run an LSTM layer over complete sequences with one kernel.

    Args:
        x: float32 `[time, batch, input depth]`.
        start: cell and output before the first step, each float32 `[batch, depth]`.
        kernel: float32 `[input depth + depth, 4 * depth]`, gates in the order input, forget, cell input, output.
        bias: float32 `[4 * depth]`.

    Returns:
        cell and output after each step, each `[time, batch, depth]`.
    """
    depth = int(kernel.shape[1]) // 4

    @tf.custom_gradient
    def run(x: Tensor, cell: Tensor, output: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        peephole = tf.zeros([depth])
        size = tf.shape(x)[0]
        with tf1.device("/cpu:0"):          # the kernel reads it there; an int64 would be in the memory of a GPU
            longest = tf.cast(size, tf.int64)
        kernel_inputs = {"seq_len_max": longest, "x": x, "cs_prev": cell, "h_prev": output, "w": kernel,
                         "wci": peephole, "wcf": peephole, "wco": peephole, "b": bias}
        results = tf.raw_ops.BlockLSTMV2(**kernel_inputs)

        def gradient(d_cell: Tensor, d_output: Tensor) -> list[Tensor]:
            d = tf.raw_ops.BlockLSTMGradV2(**kernel_inputs, **results._asdict(), cs_grad=d_cell, h_grad=d_output,
                                           use_peephole=False)
            has_rows = tf.shape(x)[1] > 0
            return [d.x_grad, d.cs_prev_grad, d.h_prev_grad, _only_if(has_rows, d.w_grad),
                    _only_if(has_rows, d.b_grad)]

        return (results.cs, results.h), gradient

    cells, outputs = run(*[tf.convert_to_tensor(t) for t in (x, *start, kernel, bias)])
    return [_with_depth(cells, depth), _with_depth(outputs, depth)]


def block_gru(x: Tensor, start: list[Tensor], gates_kernel: Tensor, gates_bias: Tensor, candidate_kernel: Tensor,
              candidate_bias: Tensor) -> list[Tensor]:
    """Run a GRU layer over complete sequences with one kernel for each step.

    Args:
        x: float32 `[time, batch, input depth]`.
        start: list of the state before the first step, float32 `[batch, depth]`.
        gates_kernel: float32 `[input depth + depth, 2 * depth]`, reset and update gate.
        gates_bias: float32 `[2 * depth]`.
        candidate_kernel: float32 `[input depth + depth, depth]`.
        candidate_bias: float32 `[depth]`.

    Returns:
        A list of the state after each step, `[time, batch, depth]`.
    """
    depth = int(candidate_kernel.shape[1])

    @tf.custom_gradient
    def run(x: Tensor, state: Tensor, w_ru: Tensor, b_ru: Tensor, w_c: Tensor, b_c: Tensor) -> Tensor:
        weights = {"w_ru": w_ru, "b_ru": b_ru, "w_c": w_c, "b_c": b_c}

        def forward(inputs: list[Tensor], carry: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            results = tf.raw_ops.GRUBlockCell(x=inputs[0], h_prev=carry[0], **weights)
            return [results.h], list(results)

        reset, update, candidate, states = loop_over_time(forward, [x], [state], 4)[1]
        previous_states = tf.concat([state[None], states[:-1]], 0)

        def gradient(d_states: Tensor) -> list[Tensor]:
            def backward(inputs: list[Tensor], carry: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
                x, h_prev, r, u, c, d_h = inputs
                d = tf.raw_ops.GRUBlockCellGrad(x=x, h_prev=h_prev, **weights, r=r, u=u, c=c, d_h=d_h + carry[0])
                return [d.d_h_prev], [d.d_x, d.d_r_bar_u_bar, d.d_c_bar]

            (d_start,), (d_x, d_gates, d_candidate) = loop_over_time(
                backward, [x, previous_states, reset, update, candidate, d_states], [tf.zeros_like(state)], 3,
                backwards=True)
            return [d_x, d_start,
                    _product_over_time(tf.concat([x, previous_states], 2), d_gates), tf.reduce_sum(d_gates, [0, 1]),
                    _product_over_time(tf.concat([x, reset * previous_states], 2), d_candidate),
                    tf.reduce_sum(d_candidate, [0, 1])]

        return states, gradient

    states = run(*[tf.convert_to_tensor(t) for t in (x, *start, gates_kernel, gates_bias, candidate_kernel,
                                                     candidate_bias)])
    return [_with_depth(states, depth)]


def _product_over_time(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum over time and batch of the outer products of `a` and `b`, each `[time, batch, depth]`."""
    return product_over_rows(*(tf.reshape(x, [-1, x.shape[2]]) for x in (a, b)))


def _only_if(condition: Tensor, x: Tensor) -> Tensor:
    return tf.where(condition, x, tf.zeros_like(x))


def _with_depth(x: Tensor, depth: int) -> Tensor:
    x.set_shape([None, None, depth])
    return x
