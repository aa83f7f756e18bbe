"""Stop training at a limit (a number of updates or of minutes), or when a score stops improving."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining

from towernmt.callbacks.stateful import Patience, ScoreWatcher, StatefulCallback, saved_number
from towernmt.core.errors import SettingsError
from towernmt.core.world import current_world


class StopAtStep(Callback):
    """Ends training after `steps` updates, those before a resume included.

    Args:
        steps: number of the last update.

    Raises:
        SettingsError: `steps` is below 1.
    """

    _chief_only = False

    def __init__(self, steps: int) -> None:
        if steps < 1:
            raise SettingsError(f"train.steps={steps}: set a limit of 1 or more updates, or no limit.")
        self.steps = steps

    def _before_epoch(self) -> None:
        self._stop_if_reached()

    def _trigger_step(self) -> None:
        self._stop_if_reached()

    def _stop_if_reached(self) -> None:
        if self.global_step >= self.steps:
            raise StopTraining(f"the limit of {self.steps} updates is reached")


class StopAfterMinutes(StatefulCallback):
    """Ends training after a number of minutes, those before a resume included.

    The time includes validation and saving, and is checked after each step. The time of a killed run after its last
    checkpoint does not count, because the resumed run repeats that work. With several processes, the clock of the chief
    decides, because checkpoints contain its time: by another clock, a run would end before its limit is reached.

    Args:
        minutes: the limit in minutes.
        clock: a function that returns seconds.

    Raises:
        SettingsError: `minutes` is not above 0.
    """

    _chief_only = False
    state_key = "stop_after_minutes"

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not minutes > 0:
            raise SettingsError(f"train.minutes={minutes}: set a limit above 0, or no limit.")
        self.minutes = minutes
        self._clock = clock
        self._previous_seconds = 0.0
        self._start_time: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._previous_seconds + (0.0 if self._start_time is None else self._clock() - self._start_time)

    def share_used(self) -> float:
        """Return the used share of the limit, from 0. All processes must call it, and all get the same value."""
        return current_world().agree(self.elapsed_seconds) / (60 * self.minutes)

    def _before_train(self) -> None:
        self._start_time = self._clock()

    def _before_epoch(self) -> None:
        self._stop_if_reached()

    def _trigger_step(self) -> None:
        self._stop_if_reached()

    def _after_train(self) -> None:
        self._previous_seconds, self._start_time = self.elapsed_seconds, None

    def _stop_if_reached(self) -> None:
        if current_world().is_chief and self.elapsed_seconds >= 60 * self.minutes:
            raise StopTraining(f"the limit of {self.minutes:g} minutes is reached")

    def state(self) -> dict[str, Any]:
        return {"elapsed_seconds": self.elapsed_seconds}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._previous_seconds = float(state["elapsed_seconds"])

    @classmethod
    def saved_seconds(cls, states: Mapping[str, Any]) -> float | None:
        """Return the seconds of training in the states of a checkpoint; None if the run had no such limit."""
        return saved_number(states, cls.state_key, "elapsed_seconds")

    def restore_seconds(self, seconds: float) -> None:
        """Count seconds of training before a resume, also of a run without this limit."""
        self._previous_seconds = seconds


class EndOfEpochs(StatefulCallback):
    """Estimates the update at which the epochs of a run end.

    A run may resume with batches of another size or with another update cycle, and then makes more or fewer updates in
    an epoch. The updates before that count as the share of the epochs that they made.

    Args:
        epochs: number of epochs of the run.
        batches: number of batches in an epoch.
        update_cycle: batches per update.
    """

    state_key = "end_of_epochs"

    def __init__(self, epochs: int, batches: int, update_cycle: int = 1) -> None:
        self._epochs, self._batches, self._update_cycle = epochs, batches, update_cycle
        self._first_step = self._first_batch = 0    # updates before these sizes, and their batches of the present size

    def last_update(self) -> int:
        """Return the update at which the epochs end; it may have fewer batches than `update_cycle`."""
        batches_left = self._epochs * self._batches - self._first_batch
        return max(1, self._first_step + -(-batches_left // self._update_cycle))

    def share_used(self, step: int) -> float:
        """Return the share of the epochs that is used before update `step` (from 1); it may exceed 1."""
        share_before = self._first_batch / (self._epochs * self._batches)
        updates = self.last_update() - self._first_step
        return share_before + (1 - share_before) * (step - 1 - self._first_step) / updates if updates > 0 else 1.0

    def state(self) -> dict[str, Any]:
        return {"batches": self._batches, "update_cycle": self._update_cycle, "first_step": self._first_step,
                "first_batch": self._first_batch, "step": self.global_step}

    def restore_state(self, state: dict[str, Any]) -> None:
        first_step, first_batch, step = (int(state[name]) for name in ("first_step", "first_batch", "step"))
        batches, update_cycle = int(state["batches"]), int(state["update_cycle"])
        if (batches, update_cycle) != (self._batches, self._update_cycle):
            batches_read = first_batch + (step - first_step) * update_cycle     # of the old size
            first_step, first_batch = step, round(batches_read * self._batches / batches)
        self._first_step, self._first_batch = first_step, first_batch


class EarlyStopping(ScoreWatcher):
    """Ends training after `patience` validations in a row without improvement.

    Put it after the validator. A run that has stopped this way stops again at once when it is restarted, unless
    `patience` is larger.

    Args:
        metric: name of the watched scalar.
        patience: number of consecutive validations without improvement that ends training.
        min_delta: a score improves if it is better than the best by more than this.
        mode: 'max' if higher scores are better, 'min' if lower ones are.

    Raises:
        SettingsError: a value is out of range.
    """

    _chief_only = False
    state_key = "early_stopping"

    def __init__(self, metric: str = "validation_bleu", patience: int = 10, min_delta: float = 0.0,
                 mode: str = "max") -> None:
        super().__init__(metric)
        self._patience = Patience(patience, min_delta, mode)

    def _on_score(self, step: int, score: float) -> None:
        self._patience.add(step, score)

    def observe(self) -> None:
        """Pass on new scores, and end training if the patience is exhausted."""
        super().observe()
        if self._patience.exhausted:
            best_text = "every score was NaN" if self._patience.best_score is None else (
                f"its best was {self._patience.best_score:.4g} at step {self._patience.best_step}")
            raise StopTraining(
                f"{self.metric} did not improve in the last {self._patience.failures} validations; {best_text}")

    def state(self) -> dict[str, Any]:
        return {**self._patience.state(), "metric": self.metric}

    def restore_state(self, state: dict[str, Any]) -> None:
        if state["metric"] == self.metric and not self.forgets_scores:   # the patience of another metric is ignored
            self._patience.restore_state(state)

    @classmethod
    def saved_failures(cls, states: Mapping[str, Any], metric: str) -> int:
        """Return the number of validations without improvement in the states of a checkpoint; 0 of another metric."""
        failures = saved_number(states, cls.state_key, "failures")
        return 0 if failures is None or states[cls.state_key].get("metric", metric) != metric else int(failures)
