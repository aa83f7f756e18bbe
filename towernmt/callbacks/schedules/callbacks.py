"""Learning-rate schedules as callbacks: each sets the variable `learning_rate` for the coming update.

They work with any tensorpack trainer whose optimizer reads a scalar float variable `learning_rate`.
A schedule is a function of the step alone, so a resumed run needs nothing more than its step (but for
`ReduceOnPlateau`, which the checkpoint remembers, and `BudgetSchedule`, which may follow the clock).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.callbacks.schedules import schedules
from towernmt.callbacks.schedules.patience import Patience
from towernmt.callbacks.schedules.schedules import ScheduleSettings
from towernmt.callbacks.stopping.limits import StopAfterMinutes
from towernmt.callbacks.validation.metrics import mode_of
from towernmt.callbacks.validation.score_watcher import ScoreWatcher
from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges
from towernmt.core.tf_compat import tf, tf1


def make_schedule(settings: ScheduleSettings, learning_rate: float, hidden_size: int, steps: int = 0,
                  limit: StopAfterMinutes | None = None) -> LearningRateSchedule:
    """The callback that `settings` names.

    Args:
        settings: `schedule.*`.
        learning_rate: peak (or constant) learning rate; for `noam` the factor of the formula, usually 1 or 2;
            not used by `piecewise`.
        hidden_size: width of the model, for `noam`.
        steps: the run's limit in updates, for `budget`; 0 for none.
        limit: the run's limit in minutes, for `budget`; None for none.
    Raises:
        SettingsError: the settings contradict each other.
    """
    check_ranges(settings, "schedule.")
    s = settings
    if s.name == "constant":
        return ConstantSchedule(learning_rate, s.warmup_steps)
    if s.name == "inverse_square_root":
        return InverseSquareRootSchedule(learning_rate, s.warmup_steps)
    if s.name == "noam":
        return NoamSchedule(hidden_size, s.warmup_steps, scale=learning_rate)
    if s.name == "linear":
        return LinearSchedule(learning_rate, s.decay_steps, s.warmup_steps, s.end_learning_rate)
    if s.name == "cosine":
        return CosineSchedule(learning_rate, s.decay_steps, s.warmup_steps, s.end_learning_rate)
    if s.name == "piecewise":
        return PiecewiseSchedule(s.boundaries, s.values, s.warmup_steps)
    if s.name == "exponential":
        return ExponentialSchedule(learning_rate, s.decay_steps, s.decay_rate, s.warmup_steps, s.staircase)
    if s.name == "plateau":
        return ReduceOnPlateau(
            learning_rate, s.warmup_steps, s.metric, s.patience, s.factor, s.min_delta, s.minimum,
            mode_of(s.metric))
    if s.name == "budget":
        return BudgetSchedule(learning_rate, steps, limit, s.warmup_steps, s.end_learning_rate)
    raise SettingsError(f"schedule.name={s.name} is not one of {', '.join(schedules.SCHEDULES)}.")


class LearningRateSchedule(Callback):
    """Base: sets a scalar variable to `value(step)` before each update.

    The variable is assigned before training (for the update after the resumed step), and after each step
    for the next one; an unchanged value costs nothing.
    """

    _chief_only = False

    variable_name = "learning_rate:0"
    """Name of the scalar variable that the optimizer reads."""

    def value(self, step: int) -> float:
        """The learning rate of update `step` (the first is 1)."""
        raise NotImplementedError

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


class ConstantSchedule(LearningRateSchedule):
    """Linear warm-up, then the same rate for ever."""

    def __init__(self, learning_rate: float, warmup_steps: int = 0) -> None:
        schedules.check_warmup("constant", warmup_steps)
        self._learning_rate, self._warmup_steps = learning_rate, warmup_steps

    def value(self, step: int) -> float:
        return schedules.constant_rate(step, self._learning_rate, self._warmup_steps)


class InverseSquareRootSchedule(LearningRateSchedule):
    """Linear warm-up to `learning_rate` at `warmup_steps`, then in proportion to step ** -0.5."""

    def __init__(self, learning_rate: float, warmup_steps: int = 4000) -> None:
        schedules.check_warmup("inverse_square_root", warmup_steps)
        self._learning_rate, self._warmup_steps = learning_rate, warmup_steps

    def value(self, step: int) -> float:
        return schedules.inverse_square_root_rate(step, self._learning_rate, self._warmup_steps)


class NoamSchedule(LearningRateSchedule):
    """Equation 3 of Vaswani et al. 2017, times `scale`."""

    def __init__(self, hidden_size: int, warmup_steps: int = 4000, scale: float = 1.0) -> None:
        schedules.check_warmup("noam", warmup_steps)
        schedules.check_positive("noam", hidden_size=hidden_size)
        self._hidden_size, self._warmup_steps, self._scale = hidden_size, warmup_steps, scale

    def value(self, step: int) -> float:
        return schedules.noam_rate(step, self._scale, self._hidden_size, self._warmup_steps)


class LinearSchedule(LearningRateSchedule):
    """Linear warm-up, then a straight line to `end_learning_rate` at update `decay_steps`."""

    def __init__(self, learning_rate: float, decay_steps: int, warmup_steps: int = 0,
                 end_learning_rate: float = 0.0) -> None:
        schedules.check_warmup("linear", warmup_steps)
        schedules.check_decay("linear", warmup_steps, decay_steps)
        self._arguments = (learning_rate, warmup_steps, decay_steps, end_learning_rate)

    def value(self, step: int) -> float:
        return schedules.linear_rate(step, *self._arguments)


class CosineSchedule(LearningRateSchedule):
    """Linear warm-up, then half a cosine to `end_learning_rate` at update `decay_steps`."""

    def __init__(self, learning_rate: float, decay_steps: int, warmup_steps: int = 0,
                 end_learning_rate: float = 0.0) -> None:
        schedules.check_warmup("cosine", warmup_steps)
        schedules.check_decay("cosine", warmup_steps, decay_steps)
        self._arguments = (learning_rate, warmup_steps, decay_steps, end_learning_rate)

    def value(self, step: int) -> float:
        return schedules.cosine_rate(step, *self._arguments)


class BudgetSchedule(LearningRateSchedule):
    """Warm-up, times a straight line to `end_learning_rate` at the end of the run, however fast the machine is.

    With a limit in minutes the rate follows the clock, so that two runs differ, and a resumed one too.

    Args:
        learning_rate: peak.
        steps: the run's limit in updates, 0 for none.
        limit: the run's limit in minutes, None for none. What is nearer counts.
        warmup_steps: updates.
    Raises:
        SettingsError: the run has no limit.
    """

    def __init__(self, learning_rate: float, steps: int = 0, limit: StopAfterMinutes | None = None,
                 warmup_steps: int = 0, end_learning_rate: float = 0.0) -> None:
        schedules.check_warmup("budget", warmup_steps)
        if not steps and limit is None:
            raise SettingsError("schedule.name=budget needs a limit to decay to: set train.steps or train.minutes.")
        self._steps, self._limit = steps, limit
        self._rate, self._warmup_steps, self._end = learning_rate, warmup_steps, end_learning_rate

    def value(self, step: int) -> float:
        done = (step - 1) / self._steps if self._steps else 0.0
        if self._limit is not None:
            done = max(done, self._limit.elapsed_seconds / (60 * self._limit.minutes))
        return schedules.budget_rate(step, done, self._rate, self._warmup_steps, self._end)


class PiecewiseSchedule(LearningRateSchedule):
    """`values[i]` up to and with update `boundaries[i]`, and the last value after that."""

    def __init__(self, boundaries: Sequence[int], values: Sequence[float], warmup_steps: int = 0) -> None:
        schedules.check_warmup("piecewise", warmup_steps)
        schedules.check_pieces(boundaries, values)
        self._boundaries, self._values, self._warmup_steps = list(boundaries), list(values), warmup_steps

    def value(self, step: int) -> float:
        return schedules.piecewise_rate(step, self._boundaries, self._values, self._warmup_steps)


class ExponentialSchedule(LearningRateSchedule):
    """Linear warm-up, then times `decay_rate` in each `decay_steps` updates."""

    def __init__(self, learning_rate: float, decay_steps: int, decay_rate: float = 0.5, warmup_steps: int = 0,
                 staircase: bool = False) -> None:
        schedules.check_warmup("exponential", warmup_steps)
        schedules.check_positive("exponential", decay_steps=decay_steps, decay_rate=decay_rate)
        self._arguments = (learning_rate, decay_steps, decay_rate, warmup_steps, staircase)

    def value(self, step: int) -> float:
        return schedules.exponential_rate(step, *self._arguments)


class ReduceOnPlateau(LearningRateSchedule, ScoreWatcher):
    """Linear warm-up, then a rate that is multiplied by `factor` whenever a score stops improving.

    Stand behind the validator and before the checkpoint saver (see `ScoreWatcher`).
    """

    state_key = "reduce_on_plateau"

    def __init__(self, learning_rate: float, warmup_steps: int = 0, metric: str = "validation_bleu",
                 patience: int = 3, factor: float = 0.5, min_delta: float = 0.0, minimum: float = 1e-7,
                 mode: str = "max") -> None:
        """
        Args:
            learning_rate: the rate after the warm-up, before any reduction.
            warmup_steps: updates of linear warm-up.
            metric: name of the watched scalar.
            patience: validations in a row without improvement before each reduction.
            factor: what the rate is multiplied by, between 0 and 1.
            min_delta: a score improves if it is better than the best by more than this.
            minimum: the rate is not reduced below this.
            mode: 'max' if higher scores are better, 'min' if lower ones are.
        Raises:
            SettingsError: a value that cannot work.
        """
        ScoreWatcher.__init__(self, metric)
        schedules.check_warmup("plateau", warmup_steps)
        schedules.check_positive("plateau", patience=patience, factor=factor)
        if factor >= 1:
            raise SettingsError(f"The plateau schedule got factor={factor}: set factor between 0 and 1.")
        self._learning_rate, self._warmup_steps, self._minimum = learning_rate, warmup_steps, minimum
        self._factor, self._reductions = factor, 0
        self._patience = Patience(patience, min_delta, mode)

    def value(self, step: int) -> float:
        rate = schedules.constant_rate(step, self._learning_rate, self._warmup_steps)
        return max(rate * self._factor ** self._reductions, min(self._minimum, rate))

    def _on_score(self, step: int, score: float) -> None:
        self._patience.add(step, score)
        if self._patience.exhausted:
            self._patience.failures = 0
            self._reductions += 1
            logger.info(f"{self.metric} has not improved since step {self._patience.best_step}: the learning "
                        f"rate becomes {self.value(self.global_step + 1):.4g}.")

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
        if state.get("metric", self.metric) == self.metric:
            self._patience.restore_state(state["patience"])
