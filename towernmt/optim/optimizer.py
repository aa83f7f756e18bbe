"""Make the optimizer of a run, with gradient clipping, dynamic loss scaling and a moving average of the weights.

Gradients are clipped by their global norm. Patterns on the names of variables decide which variables an update
changes; the others are frozen.

Dynamic loss scaling is for float16, whose range is too narrow for many gradients (Micikevicius et al. 2018). The loss
is multiplied by a scale, so that small gradients do not vanish in float16, and the float32 gradients of the
parameters are divided by it. If the scale is too large, gradients overflow: that update is skipped completely and the
scale is halved. After several consecutive updates without an overflow it is doubled (like TensorFlow's
LossScaleOptimizer and NVIDIA's Apex).

`optimizer.ema_decay` turns on an exponential moving average of the weights, which is saved with them and used in
their place. The averages are variables named `VARIABLE/ExponentialMovingAverage`, as TensorFlow names them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorpack.tfutils.gradproc import GradientProcessor
from tensorpack.tfutils.optimizer import ProxyOptimizer, apply_grad_processors
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import LARGEST_LOSS_SCALE, LossScaleOfStep, graph_state
from towernmt.core.settings import check_ranges
from towernmt.core.tensors import DType, Operation, Optimizer, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import compute_dtype
from towernmt.optim.gradients import GradsAndVars, StackedGradients, allow_skipped_update, scaled, watch_gradients
from towernmt.optim.muon import Muon
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.optim.optimizers import Adafactor, Adam, AdamW, Lamb, LazyAdam, WholeVariableUpdates

MAKERS: dict[str, Callable[[OptimizerSettings, Variable], Optimizer]] = {
    "adam": lambda s, rate: Adam(rate, s.beta1, s.beta2, s.epsilon),
    "adamw": lambda s, rate: AdamW(rate, s.weight_decay, s.beta1, s.beta2, s.epsilon),
    "lazyadam": lambda s, rate: LazyAdam(rate, s.beta1, s.beta2, s.epsilon),
    "adafactor": lambda s, rate: Adafactor(rate, s.adafactor_relative, s.adafactor_clip, s.adafactor_momentum),
    "lamb": lambda s, rate: Lamb(rate, s.weight_decay, s.beta1, s.beta2, s.epsilon),
    "muon": lambda s, rate: Muon(rate, s.weight_decay, s.beta1, s.beta2, s.epsilon, s.muon_momentum, s.muon_scale,
                                 s.muon_iterations, s.muon_interval,
                                 compute_dtype() if compute_dtype() == tf.bfloat16 else tf.float32),
    "sgd": lambda s, rate: tf1.train.MomentumOptimizer(rate, s.momentum, use_nesterov=s.nesterov),
}
"""Functions from the settings and the learning rate to a `tf1.train.Optimizer`, by the name of the optimizer. The names
are the choices of `optimizer.name` (`optimizer_settings.py`, which does not import TensorFlow)."""


def make_optimizer(settings: OptimizerSettings, clip_norm: float = 0.0) -> Optimizer:
    """Return a `tf1.train.Optimizer` whose rate is the variable `learning_rate` of the graph.

    Its updates read the tensor `learning_rate:0`, so a hook can feed the rate of a step. Adam (Kingma & Ba 2015) is
    TensorFlow's fused kernel. If the precision of the graph is float16, the loss is scaled (`LossScaleOptimizer`).

    Args:
        settings: the optimizer and its parameters.
        clip_norm: maximum global norm of the gradients; 0 for no clipping.

    Raises:
        SettingsError: a setting is not valid.
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


def updates_all_rows(optimizer: Optimizer) -> bool:
    """Return whether an optimizer makes the same update from a sparse gradient as from the dense one.

    A class that derives from Adam may override the update of sparse gradients, as LazyAdam does.
    """
    while isinstance(optimizer, ProxyOptimizer):
        optimizer = optimizer._opt
    return isinstance(optimizer, WholeVariableUpdates) or type(optimizer) in (
        tf1.train.AdamOptimizer, tf1.train.GradientDescentOptimizer, Adam, AdamW, Muon)


class GlobalNorm(GradientProcessor):
    """Measure the global norm of the gradients (tensor `gradient_norm`) and clip by it (Pascanu et al. 2013).

    Args:
        clip_norm: maximum norm; 0 for no clipping.
    """

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm

    def _process(self, grads: GradsAndVars) -> GradsAndVars:
        state, watched = graph_state(), grads
        grads = [(_with_distinct_rows(g), v) for g, v in grads]
        stacked = StackedGradients([g for g, _ in grads])
        if not state.is_replica:
            state.clip_scale = self._scale(watched, stacked)
        if state.clip_scale is None:
            return grads
        return [(g, v) for g, (_, v) in zip(stacked.scaled(state.clip_scale), grads, strict=True)]

    def _scale(self, watched: GradsAndVars, stacked: StackedGradients) -> Tensor | None:
        """Return the factor that clips the gradients, None for no clipping; the guard watches them as `watched`."""
        squares = stacked.half_squared_norms()
        watch_gradients(watched, squares)
        norm = tf.identity(tf.sqrt(tf.reduce_sum(tf.stack(squares)) * 2.0), name="gradient_norm")
        return self.clip_norm / tf.maximum(norm, self.clip_norm) if self.clip_norm else None


def _with_distinct_rows(gradient: Tensor) -> Tensor:
    """Return a sparse gradient with equal rows summed, so that its norm does not depend on the number of towers."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, row_of_value = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, row_of_value, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


@dataclass(frozen=True)
class TrainedVariables:
    """Selection of the variables to train. Frozen variables need no gradient and no slots of the optimizer.

    Args:
        only: regular expressions; train only variables whose name contains a match. Empty for all variables.
        freeze: regular expressions; do not train variables whose name contains a match.

    Raises:
        SettingsError: a pattern is not a regular expression.
    """

    only: Sequence[str] = ()
    freeze: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key, pattern in self._patterns():
            try:
                re.compile(pattern)
            except re.error as error:
                raise SettingsError(f"train.{key}={pattern}: not a regular expression ({error}); for example "
                                    "/encoder/ for all whose name holds that.") from error

    def choose(self, gradients: GradsAndVars) -> GradsAndVars:
        """Return the (gradient, variable) pairs to train.

        Raises:
            SettingsError: a pattern matches no variable, or all variables are frozen.
        """
        if not self.only and not self.freeze:
            return gradients
        names = [variable.op.name for _, variable in gradients]
        for key, pattern in self._patterns():
            if not any(re.search(pattern, name) for name in names):
                raise SettingsError(f"train.{key}={pattern} matches no trainable variable: they are named like "
                                    f"{', '.join(names[:: max(1, len(names) // 3)][:4])}.")
        trained_pairs = [pair for pair, name in zip(gradients, names, strict=True) if self._trains(name)]
        if not trained_pairs:
            raise SettingsError(f"train.only={','.join(self.only)} and train.freeze={','.join(self.freeze)} leave no "
                                "variable to train: freeze fewer.")
        logger.info(f"Training {_parameters(trained_pairs):,} of {_parameters(gradients):,} parameters, "
                    f"{len(trained_pairs)} of {len(gradients)} variables; the others are frozen.")
        return trained_pairs

    def _trains(self, name: str) -> bool:
        selected = not self.only or any(re.search(pattern, name) for pattern in self.only)
        return selected and not any(re.search(pattern, name) for pattern in self.freeze)

    def _patterns(self) -> list[tuple[str, str]]:
        return [("only", pattern) for pattern in self.only] + [("freeze", pattern) for pattern in self.freeze]


def _parameters(gradients: GradsAndVars) -> int:
    return sum(math.prod(variable.shape.as_list()) for _, variable in gradients)


SCOPE = "loss_scale"
"""Variable scope of the state, which is saved with the model."""


class LossScaleOptimizer(ProxyOptimizer):
    """An optimizer that scales losses, and skips updates whose gradients are not finite.

    A skipped update changes no variable, slot, average or count of the wrapped optimizer. The state is in global
    variables, so it is saved: `loss_scale/scale` float32 `[]`; `loss_scale/good_updates` int64 `[]`, the number of
    updates since the last change of the scale; `loss_scale/skipped_updates` int64 `[]`, the number of skipped updates.

    Args:
        optimizer: makes the updates. Its other effects, such as moving averages, are skipped with them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer, "LossScaleOptimizer")
        self._scaling = graph_state().settings.loss_scaling
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE), tf1.variable_scope(SCOPE):
            self._scale = _state("scale", tf.float32, self._scaling.initial)
            self._good = _state("good_updates", tf.int64, 0)
            self._skipped = _state("skipped_updates", tf.int64, 0)
            # Read once: the step's gradients, and with them the change of the scale, wait for this.
            self._current_scale = tf.identity(self._scale.read_value(), name="loss_scale_now")

    def compute_gradients(self, loss: Tensor, *arguments: Any, **options: Any) -> list[tuple[Tensor | None, Variable]]:
        """Return the float32 gradients of `loss`, computed from the scaled loss."""
        pairs = self._opt.compute_gradients(loss * self._current_scale, *arguments, **options)
        with tf1.name_scope("without_loss_scale"):
            share = 1.0 / self._current_scale
            return [(None if g is None else scaled(g, share), v) for g, v in pairs]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Tensor | None, Variable]],
                        global_step: Variable | None = None, name: str | None = None) -> Operation:
        """Return the operation that updates the variables, unless a gradient is not finite, and changes the scale."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        with tf1.name_scope("is_finite"):
            finite = tf.math.is_finite(tf.linalg.global_norm([g for g, _ in pairs]))

        def update() -> Tensor:
            with tf1.control_dependencies([self._opt.apply_gradients(pairs, global_step)]):
                return tf.constant(True)

        updated = tf.cond(finite, update, lambda: tf.constant(False))
        if graph_state().is_replica:
            return tf.group(updated, name=name)
        allow_skipped_update(tf.logical_not(finite) & (self._current_scale > self._scaling.least))
        return tf.group(updated, self._moved(finite), name=name)

    def _moved(self, finite: Tensor) -> Operation:
        """Return the operation that changes the state after an update that was made or skipped."""
        skipped, good = self._skipped.read_value(), tf.where(finite, self._good.read_value() + 1, 0)
        grown = good >= self._scaling.growth_updates
        current = self._current_scale
        larger = tf.where(grown, tf.minimum(current * 2.0, LARGEST_LOSS_SCALE), current)
        scale = tf.where(finite, larger, tf.maximum(current * 0.5, self._scaling.least))
        state = graph_state()
        if state.loss_scale is None:        # of the train step, and not of an update at the end of the data
            state.loss_scale = LossScaleOfStep(finite, current, skipped, scale)
        with tf1.control_dependencies([skipped]):
            count = self._skipped.assign_add(tf.cast(tf.logical_not(finite), tf.int64), read_value=False)
        return tf.group(count, self._scale.assign(scale, read_value=False),
                        self._good.assign(tf.where(grown, tf.zeros_like(good), good), read_value=False))


def _state(name: str, dtype: DType, value: float) -> Variable:
    return tf1.get_variable(name, [], dtype, initializer=tf1.constant_initializer(value, dtype), trainable=False,
                            use_resource=True)


AVERAGE_SUFFIX = "/ExponentialMovingAverage"


class AveragingOptimizer(ProxyOptimizer):
    """An optimizer that updates averages after each update: `average = d * average + (1 - d) * weight`.

    d is the minimum of `decay` and (1 + t) / (10 + t), so that the initial weights soon have no influence. t is the
    global step, if the graph has one; in towernmt's trainer it includes the current update.

    Args:
        optimizer: inner optimizer.
        decay: decay of the averages, below 1; 0.9999 averages about the last 10,000 updates.

    Raises:
        SettingsError: the decay is not between 0 and 1.
    """

    def __init__(self, optimizer: Optimizer, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise SettingsError(f"optimizer.ema_decay={decay} must be 0 (no average) or between 0 and 1.")
        self._average = tf1.train.ExponentialMovingAverage(decay, num_updates=tf1.train.get_global_step())
        super().__init__(optimizer)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Tensor, Variable]], global_step: Variable | None = None,
                        name: str | None = None) -> Operation:
        """Return the operation that updates the variables and then the averages."""
        grads_and_vars = list(grads_and_vars)
        update = self._opt.apply_gradients(grads_and_vars, global_step)
        if graph_state().is_replica:
            return tf.group(update, name=name)
        count = graph_state().count_step
        # The step is counted in the same run. Read it after that, or their order would depend on the threads.
        with tf1.control_dependencies([update] if count is None else [update, count]):
            moved = self._average.apply([variable for _, variable in grads_and_vars])
        return tf.group(update, moved, name=name)


def averages() -> dict[str, Variable]:
    """Return the averages in the default graph, by the name of their weight."""
    return {v.op.name.removesuffix(AVERAGE_SUFFIX): v for v in tf1.global_variables()
            if v.op.name.endswith(AVERAGE_SUFFIX)}


@contextmanager
def averaged_weights() -> Iterator[None]:
    """Let towers that are built inside the block read the averages instead of the weights; both must exist."""
    averages_by_name = averages()

    def get(getter: Callable[..., Variable], name: str, *arguments: Any, **options: Any) -> Variable:
        variable = getter(name, *arguments, **options)
        return averages_by_name.get(name, variable)

    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True, custom_getter=get):
        yield
