"""Base classes and helpers of callbacks: state that survives a resume, periods, patience, watched scores, look-ups.

A period is a number of steps or minutes, or both. Patience is the number of validations that a score may stay without
improvement, for early stopping and `ReduceOnPlateau`. Look-ups find other callbacks and the training towers.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tensorpack.callbacks import Callback, ProxyCallback
from tensorpack.train.base import StopTraining
from tensorpack.train.tower import TowerTrainer

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf


class Period:
    """An interval in steps, in minutes, or in both.

    Args:
        steps: interval in updates; 0: none.
        minutes: interval in minutes since the last restart; 0: none.
        clock: a function that returns seconds.
    """

    def __init__(self, steps: int = 0, minutes: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self.minutes, self._clock = steps, minutes, clock
        self._start_time = clock()

    @property
    def seconds(self) -> float:
        """Seconds since the last restart."""
        return self._clock() - self._start_time

    def restart(self, seconds: float = 0.0) -> None:
        """Start the interval in minutes again; call it at the start of training and after each action.

        Args:
            seconds: seconds of the interval that have already passed, as before a resume.
        """
        self._start_time = self._clock() - seconds

    def due(self, step: int) -> bool:
        """Return whether the action is due after `step` updates."""
        if self._steps and step % self._steps == 0:
            return True
        return bool(self.minutes) and self.seconds / 60 >= self.minutes


T = TypeVar("T")


def all_callbacks(trainer: Any) -> list[Callback]:
    """Return the trainer's callbacks, in their order."""
    return list(getattr(trainer._callbacks, "cbs", trainer._callbacks))


def with_inner_callbacks(callbacks: Iterable[Any]) -> Iterator[Any]:
    """Yield each callback, and after it those inside: of a wrapper, such as `PeriodicTrigger`, or of a group."""
    for callback in callbacks:
        yield callback
        yield from with_inner_callbacks(
            [callback.cb] if isinstance(callback, ProxyCallback) else getattr(callback, "cbs", ()))


def find_callbacks(trainer: Any, kind: type[T]) -> list[T]:
    """Return the trainer's callbacks of one class, in their order."""
    return [callback for callback in all_callbacks(trainer) if isinstance(callback, kind)]


def find_saver(trainer: Any) -> Any:
    """Return the callback that saves checkpoints (that is, has `save_now()`), or None."""
    return next((c for c in all_callbacks(trainer) if callable(getattr(c, "save_now", None))), None)


def training_towers(trainer: Any) -> list[Any]:
    """Return the handles of the training towers; empty for a trainer without towers."""
    if not isinstance(trainer, TowerTrainer) or trainer.tower_func is None:
        return []
    return list(trainer.towers.training())


_NORMAL_ENDS = (StopTraining, StopIteration, tf.errors.OutOfRangeError)
"""Exceptions that end training normally, in tensorpack's loop and in TensorFlow's `MonitoredSession`."""


class EndOfTraining:
    """Detects, in `_after_train`, whether training ended by an error.

    Create it in `_before_train`: an exception that is already being handled there does not count.
    """

    def __init__(self) -> None:
        self._outer = sys.exc_info()[1]

    def by_error(self) -> bool:
        """Return whether an exception (Ctrl-C included) is ending training."""
        current = sys.exc_info()[1]
        return current is not None and current is not self._outer and not isinstance(current, _NORMAL_ENDS)


class StatefulCallback(Callback):
    """A callback with state that checkpoints contain, such as best scores, elapsed time or patience.

    `CheckpointSaver` saves `state()` of every such callback of the trainer, also inside a wrapper of tensorpack, and
    passes it to `restore_state()` before training resumes. `state_key` is its key in the checkpoint and must be unique.
    """

    state_key: str = ""

    def state(self) -> dict[str, Any]:
        """Return the state as values that JSON can represent."""
        raise self._missing_method("state")

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `state()` returned for the checkpoint."""
        raise self._missing_method("restore_state")

    def _missing_method(self, name: str) -> SettingsError:
        return SettingsError(f"{type(self).__name__} is a StatefulCallback without {name}(): write that method, by "
                             "which checkpoints save and restore the state of the callback.")


def saved_number(states: Mapping[str, Any], key: str, name: str) -> float | None:
    """Return a number from the state of a callback in a checkpoint; None if it is missing.

    Args:
        states: the states of all callbacks, by `state_key`.
        key: `state_key` of the callback.
        name: name of the number in its state.
    """
    state = states.get(key)
    value = state.get(name) if isinstance(state, dict) else None
    return value if isinstance(value, (int, float)) else None


class Patience:
    """Counts consecutive scores that do not improve on the best.

    Args:
        patience: number of consecutive failures that exhausts it.
        min_delta: a score improves if it is better than the best by more than this.
        mode: 'max' if higher scores are better, 'min' if lower ones are.

    Attributes:
        best_score: the best score so far; None before the first.
        best_step: the step of the best score.
        failures: number of scores since then.

    Raises:
        SettingsError: a value is out of range.
    """

    def __init__(self, patience: int, min_delta: float = 0.0, mode: str = "max") -> None:
        if mode not in ("max", "min"):
            raise SettingsError(f"mode={mode} is not one of max, min.")
        if patience < 1 or min_delta < 0:
            raise SettingsError(
                f"patience={patience} and min_delta={min_delta}: set patience to 1 or more "
                "validations, and min_delta to 0 or more.")
        self._patience, self._min_delta = patience, min_delta
        self._sign = 1.0 if mode == "max" else -1.0
        self.best_score: float | None = None
        self.best_step = 0
        self.failures = 0

    def add(self, step: int, score: float) -> None:
        """Add the score of a validation; NaN never counts as an improvement."""
        if not math.isnan(score) and (
                self.best_score is None or self._sign * (score - self.best_score) > self._min_delta):
            self.best_score, self.best_step, self.failures = score, step, 0
        else:
            self.failures += 1

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` scores have not improved."""
        return self.failures >= self._patience

    def state(self) -> dict[str, Any]:
        return {"best": self.best_score, "best_step": self.best_step, "failures": self.failures}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.best_score = None if state["best"] is None else float(state["best"])
        self.best_step, self.failures = int(state["best_step"]), int(state["failures"])


class ScoreWatcher(StatefulCallback):
    """A callback that passes every new value of a scalar to `_on_score`, once.

    It checks after each step, and before each epoch, because a resumed run may start with a missing validation. Put it
    after the callback that records the score (`trainer.monitors.put_scalar`), and before the checkpoint saver, so that
    a checkpoint contains the effect of the score. A watcher without a state need not override `state`.

    Args:
        metric: name of the scalar.

    Attributes:
        forgets_scores: set before `restore_state` if the scores before a resume are not comparable with those after it,
            because they are of other sentences.
    """

    def __init__(self, metric: str) -> None:
        self.metric, self.forgets_scores = metric, False
        self._monitors: Any = None      # of the training that it watches
        self._observed_count = 0

    def _on_score(self, step: int, score: float) -> None:
        """Act on a score that was recorded after `step` updates; subclasses override it."""
        raise NotImplementedError

    def observe(self) -> None:
        """Pass on the values that were recorded since the last call."""
        monitors = self.trainer.monitors
        if monitors is not self._monitors:      # another training, such as that after a rollback
            self._monitors, self._observed_count = monitors, 0
        history = monitors.get_history(self.metric)
        while self._observed_count < len(history):
            step, score = history[self._observed_count]
            self._observed_count += 1
            self._on_score(int(step), float(score))

    def _before_epoch(self) -> None:
        self.observe()

    def _trigger_step(self) -> None:
        self.observe()
