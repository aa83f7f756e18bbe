"""Dynamic loss scaling for float16, whose range is too narrow for many gradients (Micikevicius et al. 2018).

The loss is multiplied by a scale, so that small gradients do not vanish in float16, and the float32 gradients of the
parameters are divided by it. Where the scale is too large, gradients overflow: that update is skipped wholly and the
scale is halved; after some updates in a row without an overflow it is doubled (as TensorFlow's LossScaleOptimizer and
NVIDIA's Apex do it).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorpack.tfutils.optimizer import ProxyOptimizer

from towernmt.core.graph_state import LARGEST_LOSS_SCALE, LossScaleOfStep, graph_state
from towernmt.core.tensors import DType, Operation, Optimizer, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradient_health import allow_skipped_update
from towernmt.optim.gradients import scaled

SCOPE = "loss_scale"
"""Variable scope of the state, which is saved with the model."""


class LossScaleOptimizer(ProxyOptimizer):
    """An optimizer that scales losses, and skips updates whose gradients are not finite.

    A skipped update changes no variable, no slot, no average and no count of the optimizer within. Variables (global,
    so that they are saved): `loss_scale/scale` float32 `[]`; `loss_scale/good_updates` int64 `[]`, in a row since the
    scale was last changed; `loss_scale/skipped_updates` int64 `[]`, ever.

    Args:
        optimizer: makes the updates; whatever else it does, such as moving averages, is skipped with them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer, "LossScaleOptimizer")
        self._scaling = graph_state().settings.loss_scaling
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE), tf1.variable_scope(SCOPE):
            self._scale = _state("scale", tf.float32, self._scaling.initial)
            self._good = _state("good_updates", tf.int64, 0)
            self._skipped = _state("skipped_updates", tf.int64, 0)
            # Read once: the step's gradients, and with them the change of the scale, wait for this.
            self._now = tf.identity(self._scale.read_value(), name="loss_scale_now")

    def compute_gradients(self, loss: Tensor, *arguments: Any, **options: Any) -> list[tuple[Tensor | None, Variable]]:
        """The float32 gradients of `loss` itself, computed from its multiple."""
        pairs = self._opt.compute_gradients(loss * self._now, *arguments, **options)
        with tf1.name_scope("without_loss_scale"):
            share = 1.0 / self._now
            return [(None if g is None else scaled(g, share), v) for g, v in pairs]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Tensor | None, Variable]],
                        global_step: Variable | None = None, name: str | None = None) -> Operation:
        """The update, or nothing where a gradient is not finite; then the scale's change."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        with tf1.name_scope("is_finite"):
            finite = tf.math.is_finite(tf.linalg.global_norm([g for g, _ in pairs]))

        def update() -> Tensor:
            with tf1.control_dependencies([self._opt.apply_gradients(pairs, global_step)]):
                return tf.constant(True)

        made = tf.cond(finite, update, lambda: tf.constant(False))
        allow_skipped_update(tf.logical_not(finite) & (self._now > self._scaling.least))
        return tf.group(made, self._moved(finite), name=name)

    def _moved(self, finite: Tensor) -> Operation:
        """The operation that changes the state after an update that was made or skipped."""
        skipped, good = self._skipped.read_value(), tf.where(finite, self._good.read_value() + 1, 0)
        grown = good >= self._scaling.growth_updates
        scale = tf.where(finite, tf.where(grown, tf.minimum(self._now * 2.0, LARGEST_LOSS_SCALE), self._now),
                         tf.maximum(self._now * 0.5, self._scaling.least))
        state = graph_state()
        if state.loss_scale is None:        # of the train step, and not of an update at the end of the data
            state.loss_scale = LossScaleOfStep(finite, self._now, skipped, scale)
        with tf1.control_dependencies([skipped]):
            count = self._skipped.assign_add(tf.cast(tf.logical_not(finite), tf.int64), read_value=False)
        return tf.group(count, self._scale.assign(scale, read_value=False),
                        self._good.assign(tf.where(grown, tf.zeros_like(good), good), read_value=False))


def _state(name: str, dtype: DType, value: float) -> Variable:
    return tf1.get_variable(name, [], dtype, initializer=tf1.constant_initializer(value, dtype), trainable=False,
                            use_resource=True)
