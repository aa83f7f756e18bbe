"""The one schedule with a memory: the learning rate falls when a score stops improving."""

from __future__ import annotations

from typing import Any

from tensorpack.utils import logger

from towernmt.callbacks.schedules.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules.patience import Patience
from towernmt.callbacks.schedules.rates import check_positive, constant
from towernmt.callbacks.validation.score_watcher import ScoreWatcher
from towernmt.core.errors import SettingsError


class ReduceOnPlateau(LearningRateSchedule, ScoreWatcher):
    """Linear warm-up, then a rate that is multiplied by `factor` whenever a score stops improving.

    Put it after the validator and before the checkpoint saver (see `ScoreWatcher`).
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
