"""GRU and LSTM cells over whole sequences, step by step, in TensorFlow's fused kernels, and in both directions.

The products of a cell with the input of all steps are one product before the loop; only the products with the state
remain in the loop. A fused kernel uses the same variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.fused_recurrence import block_gru, block_lstm
from towernmt.models.kernels import affine, compute_dtype, count_to, matmul, rows_at, to_float32
from towernmt.models.layers.randomness import StatelessUniform, dropout
from towernmt.models.recurrent_operations import GATES_OF_GRU, LSTM, OUTPUT_OF_GRU
from towernmt.models.scan import Step, StepOperation, apply_now, scan

_MAPS = {"gru": {"gates": 2, "candidate": 1}, "lstm": {"gates": 4}}
"""The affine maps of a cell, and how many times its depth each one yields."""
_EPSILON = 1e-6


class Cell:
    """The variables and the mathematics of one recurrent layer.

    GRU (Cho et al. 2014): r, u = sigmoid(gates(x, h)); h = u * h + (1 - u) * tanh(candidate(x, r * h)).
    LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000, open at first):
    i, f, g, o = gates(x, h); c = sigmoid(f) * c + sigmoid(i) * tanh(g); h = sigmoid(o) * tanh(c).

    With layer normalisation (Ba et al. 2016) each map is LN(x W) * a + LN(h U) * b + bias, and the output of the LSTM
    is computed from LN(c).

    The state is a list of float32 `[rows, depth]`, `[h]` or `[c, h]`; the last one is the output.

    Args:
        kind: one of `CELLS`.
        input_depth: depth of the input that is known for all steps before the loop.
        depth: depth of the state.
        name: variable scope.
        extra_depth: depth of the input that is known only within the loop, such as the context of attention.
        layer_norm: whether to normalise.
        kernels: one of `KERNELS`.
    """

    def __init__(self, kind: str, input_depth: int, depth: int, name: str, extra_depth: int = 0,
                 layer_norm: bool = False, kernels: str = "auto") -> None:
        self.kind, self.depth, self._input_depth = kind, depth, input_depth
        self._layer_norm = layer_norm
        self._fused = _use_fused(kernels, layer_norm)
        rows = input_depth + extra_depth + depth
        self._kernels: list[Tensor] = []
        self._input_kernels: list[Tensor] = []
        self._matrices: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._input_scales: list[Tensor] = []
        self._norms: list[Tensor] = []
        with tf1.variable_scope(name):
            for scope, parts in _MAPS[kind].items():
                with tf1.variable_scope(scope):
                    self._add_map(rows, parts * depth)
            if layer_norm and kind == "lstm":
                with tf1.variable_scope("cell_norm"):
                    self._norms += [_variable("scale", [depth], 1.0), _variable("offset", [depth], 0.0)]

    def _add_map(self, rows: int, depth: int) -> None:
        limit = math.sqrt(6.0 / (rows + self.depth))
        kernel = tf1.get_variable("kernel", [rows, depth], initializer=StatelessUniform(limit, "kernel"))
        graph_state().maps_in_kernel[kernel.op.name] = depth // self.depth
        self._kernels.append(tf.convert_to_tensor(kernel))
        # A split, since the gradient of slices would be written in full for each of them.
        split_kernel: list[Tensor] = []
        if self._input_depth:
            split_kernel = tf.split(self._kernels[-1], [self._input_depth, rows - self._input_depth])
        self._input_kernels += split_kernel[:1]
        self._matrices.append(split_kernel[1] if split_kernel else self._kernels[-1])
        self._biases.append(tf.convert_to_tensor(tf1.get_variable("bias", [depth], initializer=self._first_bias)))
        if self._layer_norm:
            if self._input_depth:
                self._input_scales.append(_variable("input_scale", [depth], 1.0))
            self._norms.append(_variable("state_scale", [depth], 1.0))

    def _first_bias(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        """Return zeros, with ones for the forget gate (Jozefowicz et al. 2015)."""
        if self.kind == "gru":
            return tf.zeros(shape, dtype)
        return tf.concat([tf.zeros([self.depth]), tf.ones([self.depth]), tf.zeros([2 * self.depth])], 0)

    @property
    def state_size(self) -> int:
        """Number of tensors of the state."""
        return 1 if self.kind == "gru" else 2

    @property
    def matrices(self) -> list[Tensor]:
        """Kernel rows for extra input and state, which are factors of the products in a loop."""
        return self._matrices

    @property
    def operations(self) -> list[StepOperation]:
        """Operations that `advance` applies, in order."""
        if self._layer_norm:
            return []
        return [GATES_OF_GRU, OUTPUT_OF_GRU] if self.kind == "gru" else [LSTM]

    @property
    def norms(self) -> list[Tensor]:
        """Variables of layer normalisation within a loop; empty without normalisation."""
        return self._norms

    def zero_state(self, rows: Tensor) -> list[Tensor]:
        """Return the initial state of `rows` sequences."""
        zeros = tf.zeros([rows, self.depth])
        zeros.set_shape([None, self.depth])
        return [zeros] * self.state_size

    def project(self, x: Tensor) -> list[Tensor]:
        """Return the contribution of the known input to each map.

        Args:
            x: float32 `[..., input depth]`.

        Returns:
            for each map `[..., map depth]`, in the compute dtype; float32 with layer normalisation, or if `input_depth`
            is 0.
        """
        projected = []
        for i, (matrix, bias) in enumerate(zip(self._matrices, self._biases, strict=True)):
            depth = matrix.shape[1]
            flat = tf.reshape(x, [-1, self._input_depth])
            if not self._input_depth:
                y = tf.zeros([tf.reduce_prod(tf.shape(x)[:-1]), depth]) + bias
            elif self._layer_norm:
                y = _standardize(to_float32(matmul(flat, self._input_kernels[i]))) * self._input_scales[i] + bias
            else:
                y = affine(flat, self._input_kernels[i], bias)
            y = tf.reshape(y, tf.concat([tf.shape(x)[:-1], [depth]], 0))
            y.set_shape([*x.shape[:-1], depth])
            projected.append(y)
        return projected

    def advance(self, projected: Sequence[Tensor], extra: Sequence[Tensor], state: Sequence[Tensor],
                multiply: Callable[..., Tensor], norms: Sequence[Tensor],
                apply: Callable[..., list[Tensor]] = apply_now) -> list[Tensor]:
        """Advance the state by one step.

        Args:
            projected: result of `project` for this step.
            extra: no or one tensor `[rows, extra depth]`.
            state: state before the step.
            multiply: `multiply(a, i)` is float32 `a @ matrices[i]`, `multiply(a, i, b)` adds `b`.
            norms: the tensors of `self.norms` within the loop.
            apply: `apply(operation, *args)` returns the outputs of one of `self.operations`.

        Returns:
            The state after the step.
        """
        def mapped(h: Tensor, i: int) -> Tensor:
            joined = tf.concat([*extra, h], 1) if extra else h
            if self._layer_norm:
                return projected[i] + _standardize(multiply(joined, i)) * norms[i]
            return multiply(joined, i, projected[i])

        h = state[-1]
        if self._layer_norm:
            return self._advance_normalized(mapped, state, norms)
        if self.kind == "gru":
            reset_state, update = apply(GATES_OF_GRU, mapped(h, 0), h)
            return apply(OUTPUT_OF_GRU, mapped(reset_state, 1), update, h)
        return apply(LSTM, mapped(h, 0), state[0])

    def _advance_normalized(self, mapped: Callable[[Tensor, int], Tensor], state: Sequence[Tensor],
                            norms: Sequence[Tensor]) -> list[Tensor]:
        """Advance the state by one step with layer normalisation; `mapped(h, i)` returns map i, normalised."""
        h = state[-1]
        if self.kind == "gru":
            reset, update = tf.split(tf.sigmoid(mapped(h, 0)), 2, 1)
            candidate = tf.tanh(mapped(reset * h, 1))
            return [candidate + update * (h - candidate)]
        i, f, g, o = tf.split(mapped(h, 0), 4, 1)
        c = tf.sigmoid(f) * state[0] + tf.sigmoid(i) * tf.tanh(g)
        return [c, tf.sigmoid(o) * tf.tanh(_standardize(c) * norms[1] + norms[2])]

    def step(self, x: Tensor, extra: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
        """Advance the state by one step outside a loop; `x` is float32 `[rows, input depth]`. See `advance`."""
        if self._fused:
            x = tf.concat([x, *extra], 1)
            if self.kind == "lstm":
                return [y[0] for y in block_lstm(x[None], list(state), self._kernels[0], self._biases[0])]
            cell = tf.raw_ops.GRUBlockCell(x=x, h_prev=state[0], w_ru=self._kernels[0], b_ru=self._biases[0],
                                           w_c=self._kernels[1], b_c=self._biases[1])
            return [cell.h]
        matrices = self.matrices

        def multiply(a: Tensor, i: int, *addends: Tensor) -> Tensor:
            return sum((to_float32(b) for b in addends), to_float32(matmul(a, matrices[i])))

        return self.advance(self.project(x), extra, state, multiply, self.norms)

    def run(self, x: Tensor, start: Sequence[Tensor], whole_state: bool = False) -> list[Tensor]:
        """Run the cell over complete sequences.

        Args:
            x: float32 `[time, batch, input depth]`.
            start: the state before the first step.
            whole_state: return the complete state instead of the output.

        Returns:
            The output after each step, or the complete state, each tensor `[time, batch, depth]`. Padding at the end of
            a sequence changes nothing before it.
        """
        first = 0 if whole_state else self.state_size - 1
        if self._fused and self.kind == "lstm":
            return block_lstm(x, list(start), self._kernels[0], self._biases[0])[first:]
        if self._fused:
            return block_gru(x, list(start), self._kernels[0], self._biases[0], self._kernels[1], self._biases[1])

        def run_step(step: Step) -> tuple[list[Tensor], list[Tensor]]:
            state = self.advance(step.inputs, [], step.state, step.multiply, step.shared, step.apply)
            return state, state[first:]

        return scan(run_step, self.state_size - first, self.project(x), start, self.matrices, self.norms,
                    operations=self.operations)


def _use_fused(kernels: str, layer_norm: bool) -> bool:
    """Return whether to use the fused kernels, which support only float32 without layer normalisation."""
    if kernels == "loop" or layer_norm or compute_dtype() != tf.float32:
        return False
    context = get_current_tower_context()
    return kernels == "fused" or context is None or not context.is_training


def _variable(name: str, shape: list[int], value: float) -> Tensor:
    return tf.convert_to_tensor(tf1.get_variable(name, shape, initializer=tf1.constant_initializer(value)))


def _standardize(x: Tensor) -> Tensor:
    """Return `(x - mean) / deviation` over the last dimension."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + _EPSILON)


def run_both_ways(forwards: Cell, backwards: Cell, x: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Run a bidirectional layer (Schuster & Paliwal 1997).

    Args:
        forwards: cell of the forward direction.
        backwards: cell of the backward direction.
        x: float32 `[time, batch, depth]`.
        length: int32 `[batch]`.

    Returns:
        Outputs of both directions, each `[time, batch, cell depth]`. The backward output at position t has read the
        sequence from its end to t.
    """
    rows = tf.shape(x)[1]
    forward_outputs = forwards.run(x, forwards.zero_state(rows))[-1]
    backward_outputs = backwards.run(reverse(x, length), backwards.zero_state(rows))[-1]
    return forward_outputs, reverse(backward_outputs, length)


def reverse(x: Tensor, length: Tensor) -> Tensor:
    """Return `x` `[time, batch, ...]` with each sequence reversed within its length, int32 `[batch]`."""
    return tf.reverse_sequence(x, length, seq_axis=0, batch_axis=1)


def at_end(states: Sequence[Tensor], length: Tensor) -> list[Tensor]:
    """Return the last step of each sequence.

    Args:
        states: tensors `[time, batch, depth]` with the same time and batch.
        length: int32 `[batch]`.

    Returns:
        The last step of each tensor, `[batch, depth]`.
    """
    time, sequence = (count_to(size) for size in tf.unstack(tf.shape(states[0])[:2]))
    last, batch = tf.cast(length, tf.int64) - 1, tf.cast(tf.shape(states[0])[1], tf.int64)
    rows = last * batch + sequence
    inverse = tf.reshape(tf.where(tf.equal(time[:, None], last), sequence, batch), [-1])       # [time * batch]
    return [rows_at(tf.reshape(x, [-1, int(x.shape[2])]), rows, inverse) for x in states]


def sequence_mask(rows: Tensor, depth: int, rate: float, name: str) -> Tensor:
    """Return a dropout mask for all steps of a sequence (Gal & Ghahramani 2016): float32 `[rows, depth]`."""
    ones = tf.ones([rows, depth])
    ones.set_shape([None, depth])
    return dropout(ones, rate, name)


def sequence_dropout(x: Tensor, rate: float, name: str) -> Tensor:
    """Return `x` float32 `[time, batch, depth]` times a `sequence_mask`, or `x` itself if nothing is dropped."""
    context = get_current_tower_context()
    if rate == 0.0 or context is None or not context.is_training:
        return x
    return x * sequence_mask(tf.shape(x)[1], int(x.shape[2]), rate, name)
