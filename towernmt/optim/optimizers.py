"""Adam, and optimizers that TensorFlow lacks in graph mode: AdamW, LazyAdam, Adafactor and LAMB.

Each is a `tf1.train.Optimizer` whose slots have stable names. AdamW (Loshchilov & Hutter 2019) and LazyAdam wrap
TensorFlow's Adam; their slots are named like Adam's (`VARIABLE/Adam`, `VARIABLE/Adam_1`), since they are the same
moments. Adafactor (Shazeer & Stern 2018) scales like Adam from the sums over rows and columns, in sublinear memory.
LAMB (You et al. 2020) takes Adam's direction, scaled for each variable to the variable's own norm.
"""

from __future__ import annotations

from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1


class Adam(tf1.train.AdamOptimizer):
    """TensorFlow's Adam (Kingma & Ba 2015), which reads the powers of its decays once per update, not per variable.

    These reads were an eighth of the operations of a step of the Transformer `base`. A sparse gradient becomes a dense
    one, because the moments of all rows decay: TensorFlow's operations for sparse gradients pass over the variable and
    its moments about ten times, and the kernel for dense ones once.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._powers = [tf.convert_to_tensor(power) for power in self._get_beta_accumulators()]

    def _resource_apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        power1, power2 = self._powers
        return tf.raw_ops.ResourceApplyAdam(
            var=var.handle, m=self.get_slot(var, "m").handle, v=self.get_slot(var, "v").handle, grad=grad,
            beta1_power=tf.cast(power1, grad.dtype), beta2_power=tf.cast(power2, grad.dtype),
            lr=tf.cast(self._lr_t, grad.dtype), beta1=tf.cast(self._beta1_t, grad.dtype),
            beta2=tf.cast(self._beta2_t, grad.dtype), epsilon=tf.cast(self._epsilon_t, grad.dtype),
            use_locking=self._use_locking)

    def _resource_apply_sparse(self, grad: Tensor, var: Variable, indices: Tensor) -> Operation:
        return self._resource_apply_dense(tf.math.unsorted_segment_sum(grad, indices, var.shape[0]), var)


class AdamW(Adam):
    """Adam with decoupled weight decay: also `variable -= rate * weight_decay * variable`, outside the moments.

    Args:
        learning_rate: float or tensor.
        weight_decay: share of each matrix that is subtracted at a rate of 1; vectors do not decay.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        epsilon: added to the root of the mean square.
    """

    def __init__(self, learning_rate: float | Tensor, weight_decay: float, beta1: float, beta2: float,
                 epsilon: float) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name="Adam")
        self._weight_decay = weight_decay

    def _resource_apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        with tf1.control_dependencies(self._decay(grad, var)):
            return super()._resource_apply_dense(grad, var)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        with tf1.control_dependencies(self._decay(grad, var)):
            return super()._apply_dense(grad, var)

    def _apply_sparse(self, grad: Tensor, var: Variable) -> Operation:
        with tf1.control_dependencies(self._decay(grad.values, var)):
            return super()._apply_sparse(grad, var)

    def _decay(self, grad: Tensor, var: Variable) -> list[Operation]:
        if not self._weight_decay or not decays(var):
            return []
        with tf1.control_dependencies([grad]):      # not before the step has read the weights
            return [var.assign_sub(self._lr_t * self._weight_decay * var, read_value=False)]


class LazyAdam(Adam):
    """Adam that skips rows without a gradient, moments included, so that a step costs as much as its words.

    Dense gradients are updated as in Adam, including those of an update cycle, whose sums are dense. The correction of
    the moments uses the number of all updates, as in Adam.
    """

    def __init__(self, learning_rate: float | Tensor, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name="Adam")

    def _apply_sparse(self, grad: Tensor, var: Variable) -> Operation:
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Tensor, var: Variable, indices: Tensor) -> Operation:
        """Update the rows `indices` `[rows]`, which are distinct, by their gradients `grad` `[rows, ...]`."""
        power1, power2 = self._get_beta_accumulators()
        rate = self._lr_t * tf.sqrt(1.0 - power2) / (1.0 - power1)
        moments = []
        for slot, decay, value in (("m", self._beta1_t, grad), ("v", self._beta2_t, grad * grad)):
            variable = self.get_slot(var, slot)
            rows = decay * variable.sparse_read(indices) + (1.0 - decay) * value
            moments.append((rows, variable.scatter_update(tf.IndexedSlices(rows, indices))))
        (mean, _), (square, _) = moments
        step = rate * mean / (tf.sqrt(square) + self._epsilon_t)
        moved = var.scatter_sub(tf.IndexedSlices(step, indices))
        return tf.group(moved, *[update for _, update in moments])


class WholeVariableUpdates:
    """Mixin for a `tf1.train.Optimizer` that updates complete variables, also from sparse gradients.

    A sparse gradient is converted to a dense one. This is necessary if the moments of all rows decay, or if the step
    depends on a norm over all rows, because rows without a gradient then change, too.
    """

    def _update(self, gradient: Tensor, variable: Variable) -> Operation:
        """Return the operation that updates a variable by its dense gradient."""
        raise NotImplementedError

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        return self._update(grad, var)

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return self._update(grad, handle)

    def _apply_sparse_duplicate_indices(self, grad: Tensor, var: Variable) -> Operation:
        return self._update(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        return self._update(tf.math.unsorted_segment_sum(grad, indices, handle.shape[0]), handle)


def decays(variable: Variable) -> bool:
    """Return whether weight decay applies to a variable: to matrices, not to biases and scales of a normalisation."""
    return variable.shape.rank >= 2


FLOOR = 1e-30
"""Added to the squares of the gradients (epsilon 1 of the paper)."""
LEAST_SCALE = 1e-3
"""The least scale of a relative step (epsilon 2 of the paper)."""
DECAY_EXPONENT = 0.8
"""The mean squares of update t decay by 1 - t ** -DECAY_EXPONENT (section 7.2 of the paper)."""


class Adafactor(WholeVariableUpdates, tf1.train.Optimizer):
    """The paper's algorithms 4 and 5, with the learning rate of the schedule.

    The mean squares of a matrix are the products of means of its rows and of its columns. A tensor with more
    dimensions is a stack of such matrices. A vector has a mean square for each element. Slots: `VARIABLE/Adafactor_row`
    and `_column`, or `_square`; and `_mean` with momentum. `adafactor_step` is the number of updates.

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
        with tf.init_scope():       # also within a tf.cond, the graph in which the variable was created
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
        """Return 1 / root of the mean squares, with the shape of `squares`, and the updates of the slots."""
        if variable.shape.rank < 2:
            square, update = self._faded(variable, "square", squares)
            return tf.math.rsqrt(square), [update]
        row, row_update = self._faded(variable, "row", tf.reduce_mean(squares, -1))
        column, column_update = self._faded(variable, "column", tf.reduce_mean(squares, -2))
        share = row / tf.reduce_mean(row, -1, keepdims=True)
        return (tf.math.rsqrt(share)[..., None] * tf.math.rsqrt(column)[..., None, :], [row_update, column_update])

    def _faded(self, variable: Variable, slot: str, value: Tensor) -> tuple[Tensor, Operation]:
        """Return the running mean of a slot, including the current value, and its update."""
        slot_variable = self.get_slot(variable, slot)
        mean = self._decay * slot_variable + (1.0 - self._decay) * value
        return mean, slot_variable.assign(mean, read_value=False)

    def _finish(self, update_ops: list[Operation], name_scope: str) -> Operation:
        with tf1.control_dependencies([*update_ops, self._next_step]):
            counted = self._step().assign(self._next_step, read_value=False)
        return tf.group(*update_ops, counted, name=name_scope)


def _root_mean_square(x: Tensor) -> Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))


class Lamb(WholeVariableUpdates, tf1.train.AdamOptimizer):
    """Layer-wise adaptive moments, for large batches.

    With Adam's corrected moments m and v, `direction = m / (sqrt(v) + epsilon) + weight_decay * variable`, and
    the step is `rate * |variable| / |direction| * direction` with norms over the variable; if one of them is zero, the
    step is `rate * direction`. Slots: `VARIABLE/LAMB`, `VARIABLE/LAMB_1`.

    Args:
        learning_rate: float or tensor.
        weight_decay: factor of the matrix in its direction; vectors do not decay.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        epsilon: added to the root of the mean square.
    """

    def __init__(self, learning_rate: float | Tensor, weight_decay: float, beta1: float, beta2: float,
                 epsilon: float) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name="LAMB")
        self._weight_decay = weight_decay

    def _update(self, gradient: Tensor, variable: Variable) -> Operation:
        mean, square = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        power1, power2 = self._get_beta_accumulators()
        new_mean = self._beta1_t * mean + (1.0 - self._beta1_t) * gradient
        new_square = self._beta2_t * square + (1.0 - self._beta2_t) * gradient * gradient
        value = variable.read_value()
        direction = new_mean / (1.0 - power1) / (tf.sqrt(new_square / (1.0 - power2)) + self._epsilon_t)
        if decays(variable):
            direction += self._weight_decay * value
        length, step = tf.norm(value), tf.norm(direction)
        ratio = tf.where((length > 0.0) & (step > 0.0), tf.math.divide_no_nan(length, step), tf.ones_like(step))
        return tf.group(mean.assign(new_mean, read_value=False), square.assign(new_square, read_value=False),
                        variable.assign_sub(self._lr_t * ratio * direction, read_value=False))
