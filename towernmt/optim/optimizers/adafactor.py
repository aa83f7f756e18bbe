"""Adafactor (Shazeer & Stern 2018): Adam's scaling from the sums over rows and columns, in sublinear memory."""

from __future__ import annotations

from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.optimizers.whole_variable import WholeVariableUpdates

FLOOR = 1e-30
"""Added to the squares of the gradients (epsilon 1 of the paper)."""
LEAST_SCALE = 1e-3
"""The least scale of a relative step (epsilon 2 of the paper)."""
DECAY_EXPONENT = 0.8
"""The mean squares of update t decay by 1 - t ** -DECAY_EXPONENT (section 7.2 of the paper)."""


class Adafactor(WholeVariableUpdates, tf1.train.Optimizer):
    """The paper's algorithms 4 and 5, with the learning rate of the schedule.

    Of a matrix, the mean squares are kept by row and by column and multiplied; of a tensor of more
    dimensions, so for its last two; of a vector, each by itself. Slots: `VARIABLE/Adafactor_row`, `_column` or
    `_square`, and `_mean` with momentum. The updates are counted in `adafactor_step`.

    Args:
        learning_rate: float or tensor; relative to the variable's root mean square if `relative`.
        relative: scale the step by the root mean square of the variable, at least `LEAST_SCALE`.
        clip: longest root mean square of a step before it is scaled; 0 for no limit.
        momentum: decay of the mean of the steps; 0 for none, as in the paper.
    """

    def __init__(self, learning_rate: float | Tensor, relative: bool = True, clip: float = 1.0,
                 momentum: float = 0.0) -> None:
        super().__init__(use_locking=False, name="Adafactor")
        self._rate, self._relative, self._clip, self._momentum = learning_rate, relative, clip, momentum

    def _create_slots(self, var_list: list[Variable]) -> None:
        first = min(var_list, key=lambda variable: str(variable.name))
        self._create_non_slot_variable(initial_value=0.0, name="adafactor_step", colocate_with=first)
        for variable in var_list:
            shape = variable.shape.as_list()
            if len(shape) >= 2:
                self._zeros(variable, "row", shape[:-1])
                self._zeros(variable, "column", [*shape[:-2], shape[-1]])
            else:
                self._zeros(variable, "square", shape)
            if self._momentum:
                self._zeros(variable, "mean", shape)

    def _zeros(self, variable: Variable, slot: str, shape: list[int]) -> None:
        self._get_or_make_slot_with_initializer(
            variable, tf1.zeros_initializer(), tf.TensorShape(shape), variable.dtype.base_dtype, slot,
            f"Adafactor_{slot}")

    def _prepare(self) -> None:
        self._rate_t = tf.convert_to_tensor(self._rate)
        self._next_step = self._step().read_value() + 1.0
        self._decay = 1.0 - tf.pow(self._next_step, -DECAY_EXPONENT)

    def _step(self) -> Variable:
        with tf.init_scope():       # the graph it was made in, from within a tf.cond too
            return self._get_non_slot_variable("adafactor_step", graph=tf1.get_default_graph())

    def _update(self, gradient: Tensor, variable: Variable) -> Operation:
        value = variable.read_value()
        scale, updates = self._inverse_roots(variable, gradient * gradient + FLOOR)
        step = gradient * scale
        if self._clip:
            step /= tf.maximum(1.0, _root_mean_square(step) / self._clip)
        rate = self._rate_t
        if self._relative:
            rate *= tf.maximum(LEAST_SCALE, _root_mean_square(value))
        step *= rate
        if self._momentum:
            mean = self.get_slot(variable, "mean")
            step = self._momentum * mean + (1.0 - self._momentum) * step
            updates.append(mean.assign(step, read_value=False))
        return tf.group(*updates, variable.assign_sub(step, read_value=False))

    def _inverse_roots(self, variable: Variable, squares: Tensor) -> tuple[Tensor, list[Operation]]:
        """1 / root of the mean squares, of the shape of `squares`, and the updates of the slots."""
        if variable.shape.rank < 2:
            square, update = self._faded(variable, "square", squares)
            return tf.math.rsqrt(square), [update]
        row, row_update = self._faded(variable, "row", tf.reduce_mean(squares, -1))
        column, column_update = self._faded(variable, "column", tf.reduce_mean(squares, -2))
        share = row / tf.reduce_mean(row, -1, keepdims=True)
        return (tf.math.rsqrt(share)[..., None] * tf.math.rsqrt(column)[..., None, :], [row_update, column_update])

    def _faded(self, variable: Variable, slot: str, now: Tensor) -> tuple[Tensor, Operation]:
        """The running mean of a slot with the present value, and its update."""
        kept = self.get_slot(variable, slot)
        mean = self._decay * kept + (1.0 - self._decay) * now
        return mean, kept.assign(mean, read_value=False)

    def _finish(self, update_ops: list[Operation], name_scope: str) -> Operation:
        with tf1.control_dependencies([*update_ops, self._next_step]):
            counted = self._step().assign(self._next_step, read_value=False)
        return tf.group(*update_ops, counted, name=name_scope)


def _root_mean_square(x: Tensor) -> Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))
