"""Stop when a score no longer improves."""

from __future__ import annotations

from typing import Any

from tensorpack.train.base import StopTraining

from towernmt.callbacks.schedules.patience import Patience
from towernmt.callbacks.validation.score_watcher import ScoreWatcher


class EarlyStopping(ScoreWatcher):
    """Ends training after `patience` validations in a row without improvement.

    Put it after the validator. If a run that stopped this way is started again, it stops at once, unless its patience
    was raised.
    """

    _chief_only = False
    state_key = "early_stopping"

    def __init__(self, metric: str = "validation_bleu", patience: int = 10, min_delta: float = 0.0,
                 mode: str = "max") -> None:
        """
        Args:
            metric: name of the watched scalar.
            patience: validations in a row without improvement that end training.
            min_delta: a score improves if it is better than the best by more than this.
            mode: 'max' if higher scores are better, 'min' if lower ones are.
        Raises:
            SettingsError: a value that cannot work.
        """
        super().__init__(metric)
        self._patience = Patience(patience, min_delta, mode)

    def _on_score(self, step: int, score: float) -> None:
        self._patience.add(step, score)

    def _before_epoch(self) -> None:
        self.observe()
        self._stop_if_exhausted()

    def _trigger_step(self) -> None:
        self.observe()
        self._stop_if_exhausted()

    def _stop_if_exhausted(self) -> None:
        if self._patience.exhausted:
            best = "it was never a number" if self._patience.best is None else (
                f"its best was {self._patience.best:.4g} at step {self._patience.best_step}")
            raise StopTraining(
                f"{self.metric} did not improve in the last {self._patience.failures} validations; {best}")

    def state(self) -> dict[str, Any]:
        return {**self._patience.state(), "metric": self.metric}

    def restore_state(self, state: dict[str, Any]) -> None:
        if state.get("metric", self.metric) == self.metric:   # patience with another metric counts for nothing
            self._patience.restore_state(state)
