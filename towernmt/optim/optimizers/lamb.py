"""LAMB (You et al. 2020): Adam's direction, as long for each variable as the variable itself is."""

from __future__ import annotations

from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.optimizers.whole_variable import WholeVariableUpdates, decays


class Lamb(WholeVariableUpdates, tf1.train.AdamOptimizer):
    """Layer-wise adaptive moments, for large batches.

    With Adam's corrected moments m and v, `direction = m / (sqrt(v) + epsilon) + weight_decay * variable`, and
    the step is `rate * |variable| / |direction| * direction` with norms over the variable; where one of them is
    zero, `rate * direction`. Slots: `VARIABLE/LAMB`, `VARIABLE/LAMB_1`.

    Args:
        learning_rate: float or tensor.
        weight_decay: added to the direction of matrices; vectors are left alone.
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
