"""How long a score may go without improving: shared by early stopping and reduce-on-plateau."""

from __future__ import annotations

import math
from typing import Any

from towernmt.core.errors import SettingsError


class Patience:
    """Counts the scores in a row that did not improve on the best.

    Attributes:
        best: the best score so far, None before the first.
        best_step: the step of it.
        failures: scores since then that were not better.
    """

    def __init__(self, patience: int, min_delta: float = 0.0, mode: str = "max") -> None:
        """
        Args:
            patience: failures that exhaust it.
            min_delta: a score improves if it is better than the best by more than this.
            mode: 'max' if higher is better, 'min' if lower is.
        Raises:
            SettingsError: a value that cannot work.
        """
        if mode not in ("max", "min"):
            raise SettingsError(f"mode={mode} is not one of max, min.")
        if patience < 1 or min_delta < 0:
            raise SettingsError(
                f"patience={patience} and min_delta={min_delta} cannot work: set patience to 1 or more "
                "validations, and min_delta to 0 or more.")
        self._patience, self._min_delta = patience, min_delta
        self._sign = 1.0 if mode == "max" else -1.0
        self.best: float | None = None
        self.best_step = 0
        self.failures = 0

    def add(self, step: int, score: float) -> None:
        """Take the score of one more validation; one that is not a number never improves."""
        if not math.isnan(score) and (
                self.best is None or self._sign * (score - self.best) > self._min_delta):
            self.best, self.best_step, self.failures = score, step, 0
        else:
            self.failures += 1

    @property
    def exhausted(self) -> bool:
        """Whether `patience` scores in a row did not improve."""
        return self.failures >= self._patience

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "failures": self.failures}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.best = None if state["best"] is None else float(state["best"])
        self.best_step, self.failures = int(state["best_step"]), int(state["failures"])
