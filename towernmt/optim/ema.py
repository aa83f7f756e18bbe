"""An exponential moving average of the weights, saved with them and used in their place.

The averages are variables named `VARIABLE/ExponentialMovingAverage`, as TensorFlow names them. `optimizer.ema_decay`
turns them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorpack.tfutils.optimizer import ProxyOptimizer

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Operation, Optimizer, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1

SUFFIX = "/ExponentialMovingAverage"


class AveragingOptimizer(ProxyOptimizer):
    """An optimizer that after each update moves the averages: `average = d * average + (1 - d) * weight`.

    d is `decay`, and in the first updates (1 + t) / (10 + t) if that is less, so that the initial weights are soon
    forgotten. t is the global step, where the graph has one; in a trainer of ours it already counts this update.

    Args:
        optimizer: makes the updates.
        decay: below 1; 0.9999 averages about the last 10,000 updates.
    Raises:
        SettingsError: the decay is not in (0, 1).
    """

    def __init__(self, optimizer: Optimizer, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise SettingsError(f"optimizer.ema_decay={decay} must be 0 (no average) or between 0 and 1.")
        self._average = tf1.train.ExponentialMovingAverage(decay, num_updates=tf1.train.get_global_step())
        super().__init__(optimizer)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Tensor, Variable]], global_step: Variable | None = None,
                        name: str | None = None) -> Operation:
        """tensorpack's, and the averages after it."""
        grads_and_vars = list(grads_and_vars)
        update = self._opt.apply_gradients(grads_and_vars, global_step)
        count = graph_state().count_step
        # The step is counted in the same run. Read it after that, or their order would depend on the threads.
        with tf1.control_dependencies([update] if count is None else [update, count]):
            moved = self._average.apply([variable for _, variable in grads_and_vars])
        return tf.group(update, moved, name=name)


def averages() -> dict[str, Variable]:
    """The averages in the default graph, by the name of their weight."""
    return {v.op.name.removesuffix(SUFFIX): v for v in tf1.global_variables() if v.op.name.endswith(SUFFIX)}


@contextmanager
def averaged_weights() -> Iterator[None]:
    """Towers that are built inside read the averages in place of the weights; both must be there already."""
    found = averages()

    def get(getter: Callable[..., Variable], name: str, *arguments: Any, **options: Any) -> Variable:
        variable = getter(name, *arguments, **options)
        return found.get(name, variable)

    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True, custom_getter=get):
        yield
