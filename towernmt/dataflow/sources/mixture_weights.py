"""Weights of a mixture: those that are set while it is read, and checks."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.structured_files import Between


@dataclass(frozen=True)
class WeightChange:
    """Weights that were set while a mixture was read.

    Attributes:
        after: epoch and window, from 0, after which they take effect; both -1 before the first window.
        weights: one weight for each source.
    """

    after: list[int]
    weights: list[Annotated[float, Between(0)]]


class WeightLog:
    """The weights that are set while a mixture is read in windows, and the window from which each takes effect.

    Thread-safe: a callback sets weights in the training thread, while feeder threads enter windows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: list[WeightChange] = []
        self._entered = [-1, -1]

    def set(self, weights: list[float]) -> None:
        """Set the weights from the next window that no feeder has entered."""
        with self._lock:
            self._changes = [change for change in self._changes if change.after < self._entered]
            self._changes.append(WeightChange(self._entered, weights))

    def enter(self, window: tuple[int, int]) -> None:
        """Note that a feeder begins to read a window (epoch, number in the epoch)."""
        with self._lock:
            self._entered = max(self._entered, [*window])

    def at(self, window: tuple[int, int]) -> list[float] | None:
        """Return the weights that were set for a window; None: those of the mixture, or of its cursor."""
        with self._lock:
            acting = [change.weights for change in self._changes if change.after < [*window]]
        return acting[-1] if acting else None

    def since(self, window: tuple[int, int]) -> list[WeightChange]:
        """Return the changes that a run needs to resume in a window: the last that acts there, and later ones."""
        with self._lock:
            acting = [change for change in self._changes if change.after < [*window]]
            return acting[-1:] + self._changes[len(acting):]

    def load(self, changes: Sequence[WeightChange]) -> None:
        """Replace all changes with those of a saved position."""
        with self._lock:
            self._changes = list(changes)


def damaged_weights(problem: str) -> DataError:
    """Return the error for damaged weights in a saved position."""
    return DataError(f"The weights in the data position are damaged ({problem}). Remove the newest checkpoint, and "
                     "start the same command again.")


def check_weight(name: str, weight: Any) -> None:
    """Check the weight of a source.

    Raises:
        SettingsError: it is not a number above 0.
    """
    if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)) or not (
            math.isfinite(weight) and weight > 0):
        raise SettingsError(f"{name}: weight {weight}: expected a number above 0. To take nothing from a source, "
                            "remove it from the mixture.")
