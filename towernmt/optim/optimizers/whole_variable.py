"""Shared by optimizers: updating a variable as a whole, and which variables weight decay applies to."""

from __future__ import annotations

from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf


class WholeVariableUpdates:
    """Mix in before a `tf1.train.Optimizer`: dense and sparse gradients alike go to `_update(gradient, variable)`.

    A sparse gradient is made dense: where moments fade in every row, or the step depends on a norm over all of
    them, rows without a gradient move as well.
    """

    def _update(self, gradient: Tensor, variable: Variable) -> Operation:
        """The operation that updates `variable` by its dense `gradient`."""
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
    """Whether weight decay applies: to matrices, not to biases and the scales of a normalisation."""
    return variable.shape.rank >= 2
