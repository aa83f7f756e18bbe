"""Optimizers by name, with clipping by the global norm of the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorpack.tfutils.gradproc import GradientProcessor
from tensorpack.tfutils.optimizer import apply_grad_processors

from towernmt.callbacks.nan_guard import watch_gradients
from towernmt.settings import setting
from towernmt.tf_compat import tf, tf1


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimizer, and how large its steps are."""

    name: str = setting("adam", "optimizer", choices=("adam", "sgd"))
    learning_rate: float = setting(0.001, "peak learning rate; the schedule scales it over the steps")
    beta1: float = setting(0.9, "Adam: decay of the mean of the gradients")
    beta2: float = setting(0.98, "Adam: decay of the mean of their squares")
    epsilon: float = setting(1e-9, "Adam: added to the root of the mean square")
    momentum: float = setting(0.9, "SGD: momentum")


def make_optimizer(settings: OptimizerSettings, clip_norm: float = 0.0) -> Any:
    """A `tf1.train.Optimizer` whose rate is the graph's variable `learning_rate`.

    Gradients are clipped to the global norm `clip_norm`, 0 for no clipping. Adam is Kingma & Ba (2015) in
    TensorFlow's fused kernel.
    """
    rate = tf1.get_variable("learning_rate", [], initializer=tf1.constant_initializer(settings.learning_rate),
                            trainable=False)
    if settings.name == "sgd":
        optimizer = tf1.train.MomentumOptimizer(rate, settings.momentum)
    else:
        optimizer = tf1.train.AdamOptimizer(rate, settings.beta1, settings.beta2, settings.epsilon)
    return apply_grad_processors(optimizer, [GlobalNorm(clip_norm)])


class GlobalNorm(GradientProcessor):
    """Measure the global norm of the gradients (tensor `gradient_norm`) and clip by it (Pascanu et al. 2013).

    Args:
        clip_norm: the largest norm that is let through; 0 for no clipping.
    """

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm

    def _process(self, grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        watch_gradients(grads)
        norm = tf.identity(tf.linalg.global_norm([g for g, _ in grads]), name="gradient_norm")
        if not self.clip_norm:
            return grads
        scale = self.clip_norm / tf.maximum(norm, self.clip_norm)
        return [(_scaled(g, scale), v) for g, v in grads]


def _scaled(gradient: Any, scale: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return gradient * scale
