"""Optimizers by name, with clipping by the global norm of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorpack.tfutils.gradproc import GradientProcessor
from tensorpack.tfutils.optimizer import apply_grad_processors

from towernmt.core.settings import check_ranges
from towernmt.core.tensors import Optimizer, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import compute_dtype
from towernmt.optim.ema import AveragingOptimizer
from towernmt.optim.gradient_health import watch_gradients
from towernmt.optim.gradients import GradsAndVars, scaled
from towernmt.optim.loss_scale import LossScaleOptimizer
from towernmt.optim.optimizers.adafactor import Adafactor
from towernmt.optim.optimizers.adam import AdamW, LazyAdam
from towernmt.optim.optimizers.lamb import Lamb
from towernmt.optim.settings import OptimizerSettings

MAKERS: dict[str, Callable[[OptimizerSettings, Variable], Optimizer]] = {
    "adam": lambda s, rate: tf1.train.AdamOptimizer(rate, s.beta1, s.beta2, s.epsilon),
    "adamw": lambda s, rate: AdamW(rate, s.weight_decay, s.beta1, s.beta2, s.epsilon),
    "lazyadam": lambda s, rate: LazyAdam(rate, s.beta1, s.beta2, s.epsilon),
    "adafactor": lambda s, rate: Adafactor(rate, s.adafactor_relative, s.adafactor_clip, s.adafactor_momentum),
    "lamb": lambda s, rate: Lamb(rate, s.weight_decay, s.beta1, s.beta2, s.epsilon),
    "sgd": lambda s, rate: tf1.train.MomentumOptimizer(rate, s.momentum, use_nesterov=s.nesterov),
}
"""By name: from the settings and the learning rate to a `tf1.train.Optimizer`."""


def make_optimizer(settings: OptimizerSettings, clip_norm: float = 0.0) -> Optimizer:
    """A `tf1.train.Optimizer` whose rate is the graph's variable `learning_rate`.

    The tensor `learning_rate:0` is what its updates read: a hook that feeds it sets the rate of that very step.

    Gradients are clipped to the global norm `clip_norm`, 0 for no clipping. Adam is Kingma & Ba (2015) in
    TensorFlow's fused kernel. Where the graph's precision is float16, the loss is scaled (`loss_scale`).

    Raises:
        SettingsError: a value that cannot work.
    """
    check_ranges(settings, "optimizer.")
    rate = tf1.get_variable("learning_rate", [], initializer=tf1.constant_initializer(settings.learning_rate),
                            trainable=False, use_resource=False)     # a resource's tensor is a handle, not to be fed
    optimizer = MAKERS[settings.name](settings, rate)
    if settings.ema_decay:
        optimizer = AveragingOptimizer(optimizer, settings.ema_decay)
    if compute_dtype() == tf.float16:
        optimizer = LossScaleOptimizer(optimizer)
    return apply_grad_processors(optimizer, [GlobalNorm(clip_norm)])


class GlobalNorm(GradientProcessor):
    """Measure the global norm of the gradients (tensor `gradient_norm`) and clip by it (Pascanu et al. 2013).

    Args:
        clip_norm: the largest norm that is let through; 0 for no clipping.
    """

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm

    def _process(self, grads: GradsAndVars) -> GradsAndVars:
        watch_gradients(grads)
        grads = [(_with_distinct_rows(g), v) for g, v in grads]
        norm = tf.identity(tf.linalg.global_norm([g for g, _ in grads]), name="gradient_norm")
        if not self.clip_norm:
            return grads
        scale = self.clip_norm / tf.maximum(norm, self.clip_norm)
        return [(scaled(g, scale), v) for g, v in grads]


def _with_distinct_rows(gradient: Tensor) -> Tensor:
    """A sparse gradient with each row once, summed: otherwise the norm would depend on how towers share the batch."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, place = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, place, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
