"""The learning rate as a callback: it sets the variable `learning_rate` for the coming update.

It works with any tensorpack trainer whose optimizer reads a scalar float variable `learning_rate`. A rate is a function
of the step alone, so a resumed run needs nothing more than its step (but for `budget`, which may follow the clock).
"""

from __future__ import annotations

from tensorpack.callbacks import Callback

from towernmt.callbacks.schedules.rates import Rate
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1


class LearningRateSchedule(Callback):
    """Sets a scalar variable to `value(step)` before each update.

    The variable is assigned before training (for the update after the resumed step), and after each step
    for the next one; an unchanged value costs nothing.

    Args:
        rate: from the number of an update, the first of which is 1, to its learning rate, such as `rates.cosine(...)`.
            A subclass that overrides `value` needs none.
    """

    _chief_only = False

    variable_name = "learning_rate:0"
    """Name of the scalar variable that the optimizer reads."""
    _rate: Rate | None = None

    def __init__(self, rate: Rate | None = None) -> None:
        self._rate = rate

    def value(self, step: int) -> float:
        """The learning rate of update `step` (the first is 1)."""
        if self._rate is None:
            raise NotImplementedError
        return self._rate(step)

    def _setup_graph(self) -> None:
        found = [v for v in tf1.global_variables() + tf1.local_variables() if v.name == self.variable_name]
        if not found:
            raise SettingsError(
                f"{type(self).__name__} found no variable '{self.variable_name}' in the graph: create the "
                "optimizer with tf1.get_variable('learning_rate', initializer=..., trainable=False), or "
                "leave the schedule out.")
        self._placeholder = tf1.placeholder(tf.float32, [], name="value")
        self._assign = tf1.assign(found[0], tf.cast(self._placeholder, found[0].dtype.base_dtype)).op
        self._current: float | None = None

    def _before_train(self) -> None:
        self._set_rate(force=True)

    def _before_epoch(self) -> None:
        self._set_rate(force=True)  # a callback may have restored another step and value since _before_train

    def _trigger_step(self) -> None:
        self._set_rate()

    def _set_rate(self, force: bool = False) -> None:
        rate = self.value(self.global_step + 1)
        if force or rate != self._current:
            self.trainer.sess.run(self._assign, {self._placeholder: rate})
            self._current = rate
