"""Variants of Adam: AdamW (Loshchilov & Hutter 2019) and LazyAdam, around TensorFlow's Adam.

Their slots are named as Adam's (`VARIABLE/Adam`, `VARIABLE/Adam_1`), since they are the same moments.
"""

from __future__ import annotations

from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.optimizers.whole_variable import decays


class AdamW(tf1.train.AdamOptimizer):
    """Adam with decoupled weight decay: also `variable -= rate * weight_decay * variable`, outside of the moments.

    Args:
        learning_rate: float or tensor.
        weight_decay: the share of a matrix that is taken off at a rate of 1; vectors are left alone.
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

    def _resource_apply_sparse(self, grad: Tensor, var: Variable, indices: Tensor) -> Operation:
        with tf1.control_dependencies(self._decay(grad, var)):
            return super()._resource_apply_sparse(grad, var, indices)

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


class LazyAdam(tf1.train.AdamOptimizer):
    """Adam that leaves rows without a gradient alone, moments included: a step costs what its words cost.

    Dense gradients are Adam's; so are those of an update cycle, whose sums are dense. The correction of the
    moments goes by the number of all updates, as in Adam.
    """

    def __init__(self, learning_rate: float | Tensor, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name="Adam")

    def _apply_sparse(self, grad: Tensor, var: Variable) -> Operation:
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Tensor, var: Variable, indices: Tensor) -> Operation:
        """`grad` `[rows, ...]`, of the distinct `indices` `[rows]`."""
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
