"""Callbacks that set the learning rate: by a schedule, or after a score has stopped improving.

They work with any tensorpack trainer whose optimizer reads a scalar float variable `learning_rate`. A rate is a
function of the step alone, so a resumed run needs only its step (except for `budget`, which may follow the clock).
Only `ReduceOnPlateau` has a state.
"""

from __future__ import annotations

import inspect
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.callbacks.schedules import PLATEAU, RATES, Rate, ScheduleSettings, check_positive, constant
from towernmt.callbacks.stateful import Patience, ScoreWatcher
from towernmt.callbacks.stopping import EndOfEpochs, StopAfterMinutes
from towernmt.callbacks.validation_metrics import mode_of
from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges
from towernmt.core.tf_compat import tf, tf1


class LearningRateSchedule(Callback):
    """Sets the scalar variable `learning_rate` of the graph to `value(step)` before each update.

    The variable is assigned before training (for the update after the resumed step), and after each step for the next
    update if the value has changed.

    Args:
        rate: function from the number of an update (from 1) to its learning rate, such as `schedules.cosine(...)`.
            None: a subclass overrides `value`.
    """

    _chief_only = False

    variable_name = "learning_rate:0"
    """Name of the scalar variable that the optimizer reads."""
    _rate: Rate | None = None

    def __init__(self, rate: Rate | None = None) -> None:
        self._rate = rate

    def value(self, step: int) -> float:
        """Return the learning rate of update `step`, counted from 1."""
        if self._rate is None:
            raise NotImplementedError
        return self._rate(step)

    def _setup_graph(self) -> None:
        rates = [v for v in tf1.global_variables() + tf1.local_variables() if v.name == self.variable_name]
        if not rates:
            raise SettingsError(
                f"{type(self).__name__} needs the variable '{self.variable_name}', which is not in the graph: create "
                "the optimizer with tf1.get_variable('learning_rate', initializer=..., trainable=False), or "
                "remove the schedule.")
        self._placeholder = tf1.placeholder(tf.float32, [], name="value")
        self._assign = tf1.assign(rates[0], tf.cast(self._placeholder, rates[0].dtype.base_dtype)).op
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


class ReduceOnPlateau(LearningRateSchedule, ScoreWatcher):
    """A schedule of linear warm-up, then a rate that is multiplied by `factor` when a score stops improving.

    Put it after the validator and before the checkpoint saver (see `ScoreWatcher`).

    Args:
        learning_rate: the rate after the warm-up, before any reduction.
        warmup_steps: updates of linear warm-up.
        metric: name of the watched scalar.
        patience: validations in a row without improvement before each reduction.
        factor: multiplier of the rate, between 0 and 1.
        min_delta: a score improves if it is better than the best by more than this.
        minimum: lower limit of the reduced rate.
        mode: 'max' if higher scores are better, 'min' if lower ones are.

    Raises:
        SettingsError: a value is out of range.
    """

    state_key = "reduce_on_plateau"

    def __init__(self, learning_rate: float, warmup_steps: int = 0, metric: str = "validation_bleu",
                 patience: int = 3, factor: float = 0.5, min_delta: float = 0.0, minimum: float = 1e-7,
                 mode: str = "max") -> None:
        ScoreWatcher.__init__(self, metric)
        self._unreduced = constant(learning_rate, warmup_steps)
        check_positive("plateau", patience=patience, factor=factor)
        if factor >= 1:
            raise SettingsError(f"The plateau schedule got factor={factor}: set factor between 0 and 1.")
        self._minimum, self._factor, self._reductions = minimum, factor, 0
        self._patience = Patience(patience, min_delta, mode)

    def value(self, step: int) -> float:
        rate = self._unreduced(step)
        return max(rate * self._factor ** self._reductions, min(self._minimum, rate))

    def _on_score(self, step: int, score: float) -> None:
        self._patience.add(step, score)
        if self._patience.exhausted:
            self._patience.failures = 0
            self._reductions += 1
            logger.info(f"{self.metric} has not improved since step {self._patience.best_step}: reducing the "
                        f"learning rate to {self.value(self.global_step + 1):.4g}.")

    def _before_epoch(self) -> None:
        self.observe()
        LearningRateSchedule._before_epoch(self)

    def _trigger_step(self) -> None:
        self.observe()
        self._set_rate()

    def state(self) -> dict[str, Any]:
        return {"reductions": self._reductions, "patience": self._patience.state(), "metric": self.metric}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._reductions = int(state["reductions"])
        if state["metric"] == self.metric and not self.forgets_scores:
            self._patience.restore_state(state["patience"])


def make_schedule(settings: ScheduleSettings, learning_rate: float, hidden_size: int, steps: int = 0,
                  limit: StopAfterMinutes | None = None, end_of_epochs: EndOfEpochs | None = None
                  ) -> LearningRateSchedule:
    """Return the callback of the schedule in `settings`.

    A function of `RATES` receives settings and the other arguments by the names of its parameters.

    Args:
        settings: the settings `schedule.*`.
        learning_rate: peak (or constant) learning rate; for `noam` its `scale`, usually 1 or 2; unused by `piecewise`.
        hidden_size: width of the model, for `noam`.
        steps: the limit of updates of the run, for `budget`; 0: no such limit.
        limit: the time limit of the run, for `budget`; None: no time limit.
        end_of_epochs: the end of the epochs of the run, for `budget`; None: not limited, or not known.

    Raises:
        SettingsError: the settings contradict each other.
    """
    check_ranges(settings, "schedule.")
    if settings.name == PLATEAU:
        return ReduceOnPlateau(learning_rate, settings.warmup_steps, settings.metric, settings.patience,
                               settings.factor, minimum=settings.minimum, mode=mode_of(settings.metric))
    values = {**vars(settings), "learning_rate": learning_rate, "scale": learning_rate, "hidden_size": hidden_size,
              "steps": steps, "elapsed": None if limit is None else limit.share_used,
              "of_epochs": None if end_of_epochs is None else end_of_epochs.share_used}
    make = RATES[settings.name]
    return LearningRateSchedule(make(**{name: values[name] for name in inspect.signature(make).parameters}))
