"""Muon: the momentum of each hidden matrix, made orthogonal; Adam for all other variables.

Jordan et al. (2024), "Muon: An optimizer for hidden layers in neural networks". The scale of a step and the decay of
the weights are those of Liu et al. (2025), "Muon is scalable for LLM training": a step has about the root mean square
of an Adam step, so one learning rate serves both kinds of variables. The polynomials that make a matrix orthogonal are
those of Amsel et al. (2025), "The Polar Express: Optimal matrix sign methods and their application to the Muon
algorithm".

A hidden matrix is a variable named `.../kernel` with two dimensions, or with three (the windows of a convolution, whose
first two dimensions are its rows). Embeddings, the projection to the vocabulary, biases and scales are not: their rows
or elements are independent of each other. A kernel with several maps in one product (queries, keys and values; the
gates of a cell) is divided into its maps, each of which is made orthogonal alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import DType, Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.optimizers import AdamW

COEFFICIENTS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.875, -1.25, 0.375))
"""a, b and c of each step, which makes a x + b x^3 + c x^5 of a singular value x (Amsel et al. 2025). The first T steps
together are the best ones for singular values above a thousandth of the norm. The last row serves all further steps."""
MARGIN = 1.01
"""Singular values are divided by this before each step, so that one above 1 by rounding does not grow."""


class Muon(AdamW):
    """Muon for hidden matrices, and AdamW for the other variables.

    For the gradient g of a matrix: `momentum = m * momentum + (1 - m) * g`, `direction = m * momentum + (1 - m) * g`
    (Nesterov), and `variable -= rate * (scale * sqrt(max(rows, columns)) * orthogonal(direction) + decay * variable)`.
    Slots: `VARIABLE/Muon`, the momentum; `VARIABLE/Adam` and `VARIABLE/Adam_1` of the other variables.

    Args:
        learning_rate: float or tensor.
        weight_decay: share of each matrix that is subtracted at a rate of 1.
        beta1: decay of Adam's mean of the gradients.
        beta2: decay of Adam's mean of their squares.
        epsilon: added to the root of Adam's mean square.
        momentum: m, the decay of the momentum.
        scale: factor of the steps of hidden matrices; 0.2 gives them the root mean square of Adam's steps.
        iterations: number of steps that make a direction orthogonal.
        interval: number of updates from one orthogonal direction to the next. The updates between them repeat the last
            one, because the momentum changes slowly; it is then kept in the slot `VARIABLE/Muon_direction`, and the
            updates are counted in `muon_step`.
        dtype: type of the products that make a direction orthogonal; bfloat16 is precise enough.
    """

    def __init__(self, learning_rate: float | Tensor, weight_decay: float, beta1: float, beta2: float, epsilon: float,
                 momentum: float = 0.95, scale: float = 0.2, iterations: int = 3, interval: int = 1,
                 dtype: DType = tf.float32) -> None:
        super().__init__(learning_rate, weight_decay, beta1, beta2, epsilon)
        self._momentum, self._scale, self._iterations, self._dtype = momentum, scale, iterations, dtype
        self._interval = interval

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Tensor | None, Variable]],
                        global_step: Variable | None = None, name: str | None = None) -> Operation:
        """Return the operation that updates the variables, and then counts the step in `global_step`."""
        pairs = list(grads_and_vars)
        hidden = [(tf.convert_to_tensor(g), v) for g, v in pairs if g is not None and is_hidden_matrix(v)]
        adamw_pairs = [(g, v) for g, v in pairs if not is_hidden_matrix(v)]
        updates = []
        if adamw_pairs or not hidden:        # TensorFlow's optimizer explains a list without any gradient
            updates.append(super().apply_gradients(adamw_pairs))
        with tf1.name_scope("Muon"):
            updates += self._update_matrices(hidden)
        if global_step is not None:
            with tf1.control_dependencies(updates):
                updates.append(global_step.assign_add(1, read_value=False))
        return tf.group(*updates, name=name or "Muon_update")

    def _update_matrices(self, pairs: list[tuple[Tensor, Variable]]) -> list[Operation]:
        """Return the updates of hidden matrices."""
        variables, m = [variable for _, variable in pairs], self._momentum
        rate = tf.convert_to_tensor(self._lr)
        with tf.init_scope():
            slots = [self._zeros_slot(variable, "momentum", "Muon") for variable in variables]
        updates: list[Operation] = []
        directions = []
        for (gradient, _), slot in zip(pairs, slots, strict=True):
            mean = m * slot + (1.0 - m) * gradient
            updates.append(slot.assign(mean, read_value=False))
            directions.append(m * mean + (1.0 - m) * gradient)
        if self._interval > 1 and pairs:
            steps, slot_updates = self._steps_at_intervals(directions, variables)
            updates += slot_updates
        else:
            steps = self._steps(directions, variables)
        for (gradient, variable), step in zip(pairs, steps, strict=True):
            # Not before the towers have read the weights; a repeated direction does not depend on their gradients.
            with tf1.control_dependencies([gradient]):
                if self._weight_decay:
                    step += self._weight_decay * variable.read_value()
                updates.append(variable.assign_sub(rate * step, read_value=False))
        return updates

    def _steps_at_intervals(self, directions: list[Tensor], variables: list[Variable]
                            ) -> tuple[list[Tensor], list[Operation]]:
        """Return the steps at a rate of 1, and the operations that keep them for the next updates."""
        with tf.init_scope():
            slots = [self._zeros_slot(variable, "direction", "Muon_direction") for variable in variables]
            count = self._create_non_slot_variable(0.0, "muon_step", colocate_with=variables[0])
        updates_so_far = count.read_value()
        steps = tf.cond(tf.equal(tf.math.floormod(updates_so_far, float(self._interval)), 0.0),
                        lambda: self._steps(directions, variables), lambda: [slot.read_value() for slot in slots])
        with tf1.control_dependencies([updates_so_far]):
            assignments = [count.assign_add(1.0, read_value=False)]
            assignments += [slot.assign(step, read_value=False) for slot, step in zip(slots, steps, strict=True)]
        return steps, assignments

    def _steps(self, directions: list[Tensor], variables: list[Variable]) -> list[Tensor]:
        """Return the steps at a rate of 1; the maps of one shape are made orthogonal in one product."""
        maps: dict[tuple[int, int], list[_Map]] = {}
        for direction, variable in zip(directions, variables, strict=True):
            for matrix in _maps(direction, variable):
                maps.setdefault(matrix.shape, []).append(matrix)
        steps: dict[str, list[Tensor]] = {variable.op.name: [] for variable in variables}
        for (rows, columns), group in maps.items():
            stacked = tf.stack([matrix.direction for matrix in group])
            scale = self._scale * math.sqrt(max(rows, columns))
            orthogonal_steps = scale * orthogonal(stacked, self._iterations, self._dtype)
            for matrix, step in zip(group, tf.unstack(orthogonal_steps), strict=True):
                steps[matrix.variable].append(step)
        return [tf.reshape(tf.concat(steps[variable.op.name], 1), variable.shape) for variable in variables]


class _Map(NamedTuple):
    """One map of a kernel: the kernel's name, and the direction of its step `[rows, columns]`."""

    variable: str
    direction: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.direction.shape.as_list()
        return rows, columns


def is_hidden_matrix(variable: Variable) -> bool:
    """Return whether Muon updates a variable."""
    *scopes, name = str(variable.op.name).split("/")
    vocabulary = any("embedding" in scope or "softmax" in scope for scope in scopes)
    return name == "kernel" and variable.shape.rank in (2, 3) and not vocabulary


def _maps(direction: Tensor, variable: Variable) -> list[_Map]:
    """Return the maps of a kernel in the order of their columns."""
    name = str(variable.op.name)
    matrix = tf.reshape(direction, [-1, variable.shape[-1]])
    return [_Map(name, part) for part in tf.split(matrix, graph_state().maps_in_kernel.get(name, 1), axis=1)]


def orthogonal(matrices: Tensor, iterations: int = 3, dtype: DType = tf.float32) -> Tensor:
    """Return nearly orthogonal matrices with the singular vectors of the given ones.

    Singular values above 0.3 % of the norm come between 0.18 and 1.87 by three steps, between 0.43 and 1.57 by four,
    and between 0.87 and 1.13 by five. A matrix of zeros stays zero. Three steps train as well as five
    (docs/notes/defaults.md, "Muon").

    Args:
        matrices: float32 `[matrices, rows, columns]`.
        iterations: number of steps; see `COEFFICIENTS`.
        dtype: type of the products.

    Returns:
        float32 of the shape of `matrices`.
    """
    norms = tf.sqrt(tf.reduce_sum(tf.square(matrices), [-2, -1], keepdims=True))
    x = tf.cast(tf.math.divide_no_nan(matrices, norms), dtype)
    rows, columns = matrices.shape.as_list()[-2:]
    tall = rows > columns
    if dtype == tf.float32 and max(rows, columns) >= 2 * min(rows, columns):
        product = _product_of_steps(tf.matmul(x, x, transpose_a=tall, transpose_b=not tall), iterations)
        return tf.matmul(x, product) if tall else tf.matmul(product, x)
    for a, b, c in _coefficients(iterations):       # with the smaller of the two products of x and its transpose
        square = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
        mixed = b * square + c * tf.matmul(square, square)
        x = a * x + (tf.matmul(x, mixed) if tall else tf.matmul(mixed, x))
    return tf.cast(x, tf.float32)


def _coefficients(iterations: int) -> list[tuple[float, float, float]]:
    """Return a, b and c of each step on singular values that are divided by `MARGIN` before it."""
    rows = [COEFFICIENTS[min(step, len(COEFFICIENTS) - 1)] for step in range(iterations)]
    return [(a / MARGIN, b / MARGIN ** 3, c / MARGIN ** 5) for a, b, c in rows]


def _product_of_steps(square: Tensor, iterations: int) -> Tensor:
    """Return the matrix by which the steps multiply x, from x times its transpose.

    All products have the size of the smaller side, so a matrix that is four times as long as wide takes half the time.
    The error of the square grows with each step, so this is for float32 alone.

    Args:
        square: float32 `[matrices, side, side]`.
        iterations: number of steps.
    """
    identity = tf.eye(int(square.shape[-1]))
    product = None
    for step, (a, b, c) in enumerate(_coefficients(iterations)):
        polynomial = a * identity + b * square + c * tf.matmul(square, square)
        product = polynomial if product is None else tf.matmul(product, polynomial)
        if step + 1 < iterations:
            square = tf.matmul(polynomial, tf.matmul(polynomial, square))
    return product
