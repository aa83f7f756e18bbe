"""GRU and LSTM cells, over whole sequences and step by step.

A cell's products with the input of all steps are one product before the loop; in the loop remains what depends
on the state. Where TensorFlow has a fused kernel for a cell it can be used instead, on the same variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import affine, compute_dtype, matmul, to_float32
from towernmt.models.layers.initializers import StatelessUniform
from towernmt.models.recurrent.fused import block_gru, block_lstm
from towernmt.models.recurrent.scan import Step, StepOperation, apply_now, scan

_MAPS = {"gru": {"gates": 2, "candidate": 1}, "lstm": {"gates": 4}}
"""The affine maps of a cell, and how many times its depth each one yields."""
_EPSILON = 1e-6


class Cell:
    """The variables and the mathematics of one recurrent layer.

    GRU (Cho et al. 2014): r, u = sigmoid(gates(x, h)); h = u * h + (1 - u) * tanh(candidate(x, r * h)).
    LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000, open at first):
    i, f, g, o = gates(x, h); c = sigmoid(f) * c + sigmoid(i) * tanh(g); h = sigmoid(o) * tanh(c).

    With layer normalisation (Ba et al. 2016) each map is LN(x W) * a + LN(h U) * b + bias, and the LSTM's
    output is made from LN(c).

    The state is a list of float32 `[rows, depth]`, the output last: `[h]` or `[c, h]`.

    Args:
        kind: one of `choices.CELLS`.
        input_depth: of the input that is known for all steps beforehand.
        depth: of the state.
        name: variable scope.
        extra_depth: of the input that is known only within the loop, such as what attention read.
        layer_norm: normalise.
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
        self._kernels.append(tf.convert_to_tensor(tf1.get_variable(
            "kernel", [rows, depth], initializer=StatelessUniform(limit, "kernel"))))
        # A split, since the gradient of slices would be written in full for each of them.
        known = tf.split(self._kernels[-1], [self._input_depth, rows - self._input_depth]) if self._input_depth else []
        self._input_kernels += known[:1]
        self._matrices.append(known[1] if known else self._kernels[-1])
        self._biases.append(tf.convert_to_tensor(tf1.get_variable("bias", [depth], initializer=self._first_bias)))
        if self._layer_norm:
            if self._input_depth:
                self._input_scales.append(_variable("input_scale", [depth], 1.0))
            self._norms.append(_variable("state_scale", [depth], 1.0))

    def _first_bias(self, shape: Any, dtype: DType = tf.float32, partition_info: Any = None) -> Tensor:
        """Zeros; ones for the forget gate (Jozefowicz et al. 2015)."""
        if self.kind == "gru":
            return tf.zeros(shape, dtype)
        return tf.concat([tf.zeros([self.depth]), tf.ones([self.depth]), tf.zeros([2 * self.depth])], 0)

    @property
    def state_size(self) -> int:
        """How many tensors the state has."""
        return 1 if self.kind == "gru" else 2

    @property
    def matrices(self) -> list[Tensor]:
        """What a loop multiplies with: the rows of the kernels for extra input and state."""
        return self._matrices

    @property
    def operations(self) -> list[StepOperation]:
        """What `advance` applies."""
        if self._layer_norm:
            return []
        return [_GATES_OF_GRU, _OUTPUT_OF_GRU] if self.kind == "gru" else [_LSTM]

    @property
    def norms(self) -> list[Tensor]:
        """The variables that layer normalisation needs within a loop; empty without it."""
        return self._norms

    def zero_state(self, rows: Tensor) -> list[Tensor]:
        """The state of `rows` sequences before anything was read."""
        zeros = tf.zeros([rows, self.depth])
        zeros.set_shape([None, self.depth])
        return [zeros] * self.state_size

    def project(self, x: Tensor) -> list[Tensor]:
        """The share of the known input in each map `[..., map depth]`, of `x` `[..., input depth]`.

        In the compute dtype; float32 with layer normalisation, or where no input is known.
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
        """One step.

        Args:
            projected: from `project`, for this step.
            extra: no or one tensor `[rows, extra depth]`.
            state: before the step.
            multiply: `multiply(a, i)` is float32 `a @ matrices[i]`, `multiply(a, i, b)` adds `b`.
            norms: `self.norms`, as the loop sees them.
            apply: `apply(operation, *args)` is what one of `self.operations` yields.
        Returns:
            the state after it.
        """
        def mapped(h: Tensor, i: int) -> Tensor:
            read = tf.concat([*extra, h], 1) if extra else h
            if self._layer_norm:
                return projected[i] + _standardize(multiply(read, i)) * norms[i]
            return multiply(read, i, projected[i])

        h = state[-1]
        if self._layer_norm:
            return self._advance_normalized(mapped, state, norms)
        if self.kind == "gru":
            shown, update = apply(_GATES_OF_GRU, mapped(h, 0), h)
            return apply(_OUTPUT_OF_GRU, mapped(shown, 1), update, h)
        return apply(_LSTM, mapped(h, 0), state[0])

    def _advance_normalized(self, mapped: Callable[[Tensor, int], Tensor], state: Sequence[Tensor],
                            norms: Sequence[Tensor]) -> list[Tensor]:
        """`advance` with layer normalisation; `mapped(h, i)` is the i-th map, normalised."""
        h = state[-1]
        if self.kind == "gru":
            reset, update = tf.split(tf.sigmoid(mapped(h, 0)), 2, 1)
            candidate = tf.tanh(mapped(reset * h, 1))
            return [candidate + update * (h - candidate)]
        i, f, g, o = tf.split(mapped(h, 0), 4, 1)
        c = tf.sigmoid(f) * state[0] + tf.sigmoid(i) * tf.tanh(g)
        return [c, tf.sigmoid(o) * tf.tanh(_standardize(c) * norms[1] + norms[2])]

    def step(self, x: Tensor, extra: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
        """One step by itself, of `x` float32 `[rows, input depth]`; see `advance`."""
        if self._fused:
            x = tf.concat([x, *extra], 1)
            if self.kind == "lstm":
                return [y[0] for y in block_lstm(x[None], list(state), self._kernels[0], self._biases[0])]
            cell = tf.raw_ops.GRUBlockCell(x=x, h_prev=state[0], w_ru=self._kernels[0], b_ru=self._biases[0],
                                           w_c=self._kernels[1], b_c=self._biases[1])
            return [cell.h]
        matrices = self.matrices

        def multiply(a: Tensor, i: int, *added: Tensor) -> Tensor:
            return sum((to_float32(b) for b in added), to_float32(matmul(a, matrices[i])))

        return self.advance(self.project(x), extra, state, multiply, self.norms)

    def run(self, x: Tensor, start: Sequence[Tensor], whole_state: bool = False) -> list[Tensor]:
        """Read whole sequences.

        Args:
            x: float32 `[time, batch, input depth]`.
            start: the state before the first step.
            whole_state: not only the outputs.
        Returns:
            the output after each step, or all of the state, each tensor `[time, batch, depth]`. Padding at the end of
            a sequence changes nothing before it.
        """
        first = 0 if whole_state else self.state_size - 1
        if self._fused and self.kind == "lstm":
            return block_lstm(x, list(start), self._kernels[0], self._biases[0])[first:]
        if self._fused:
            return block_gru(x, list(start), self._kernels[0], self._biases[0], self._kernels[1], self._biases[1])

        def one(step: Step) -> tuple[list[Tensor], list[Tensor]]:
            state = self.advance(step.inputs, [], step.state, step.multiply, step.shared, step.apply)
            return state, state[first:]

        return scan(one, self.state_size - first, self.project(x), start, self.matrices, self.norms,
                    operations=self.operations)


def _use_fused(kernels: str, layer_norm: bool) -> bool:
    """Whether to use the fused kernels, which know float32 without layer normalisation."""
    if kernels == "loop" or layer_norm or compute_dtype() != tf.float32:
        return False
    context = get_current_tower_context()
    return kernels == "fused" or context is None or not context.is_training


def _variable(name: str, shape: list[int], value: float) -> Tensor:
    return tf.convert_to_tensor(tf1.get_variable(name, shape, initializer=tf1.constant_initializer(value)))


def _standardize(x: Tensor) -> Tensor:
    """(x - mean) / deviation over the last dimension."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + _EPSILON)


def _gates_of_gru(z: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    reset, update = tf.split(tf.sigmoid(z), 2, 1)
    return [reset * h, update], [reset]


def _gates_of_gru_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor],
                           d_outputs: Sequence[Tensor]) -> list[Tensor]:
    (_, h), (_, update), (reset,), (d_shown, d_update) = args, outputs, kept, d_outputs
    d_z = tf.concat([_d_sigmoid(reset, d_shown * h), _d_sigmoid(update, d_update)], 1)
    return [d_z, d_shown * reset]


def _output_of_gru(z: Tensor, update: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    candidate = tf.tanh(z)
    change = h - candidate
    return [candidate + update * change], [candidate, change]


def _output_of_gru_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor],
                            d_outputs: Sequence[Tensor]) -> list[Tensor]:
    (_, update, _), (candidate, change), (d,) = args, kept, d_outputs
    d_h = d * update
    return [_d_tanh(candidate, d - d_h), d * change, d_h]


def _lstm(z: Tensor, c: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    i, f, g, o = tf.split(z, 4, 1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    c = f * c + i * g
    shown = tf.tanh(c)
    return [c, o * shown], [i, f, g, o, shown]


def _lstm_backward(args: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor],
                   d_outputs: Sequence[Tensor]) -> list[Tensor]:
    (_, c), (i, f, g, o, shown), (d_c, d_h) = args, kept, d_outputs
    d_c += _d_tanh(shown, d_h * o)
    d_z = [_d_sigmoid(i, d_c * g), _d_sigmoid(f, d_c * c), _d_tanh(g, d_c * i), _d_sigmoid(o, d_h * shown)]
    return [tf.concat(d_z, 1), d_c * f]


def _d_sigmoid(y: Tensor, d: Tensor) -> Tensor:
    """The gradient of x from that of y = sigmoid(x)."""
    return tf.raw_ops.SigmoidGrad(y=y, dy=d)


def _d_tanh(y: Tensor, d: Tensor) -> Tensor:
    return tf.raw_ops.TanhGrad(y=y, dy=d)


_GATES_OF_GRU = StepOperation(2, 1, _gates_of_gru, _gates_of_gru_backward)
_OUTPUT_OF_GRU = StepOperation(1, 2, _output_of_gru, _output_of_gru_backward)
_LSTM = StepOperation(2, 5, _lstm, _lstm_backward)
