"""Looking up what a callback works with: other callbacks, the training towers, whether an error ends training."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from tensorpack.callbacks import Callback
from tensorpack.train.tower import TowerTrainer

T = TypeVar("T")


def all_callbacks(trainer: Any) -> list[Callback]:
    """The trainer's callbacks, in their order."""
    return list(getattr(trainer._callbacks, "cbs", trainer._callbacks))


def find_callbacks(trainer: Any, kind: type[T]) -> list[T]:
    """The trainer's callbacks of one class, in their order."""
    return [callback for callback in all_callbacks(trainer) if isinstance(callback, kind)]


def find_saver(trainer: Any) -> Any:
    """The callback that saves checkpoints (anything with `save_now()`), or None."""
    return next((c for c in all_callbacks(trainer) if callable(getattr(c, "save_now", None))), None)


def training_towers(trainer: Any) -> list[Any]:
    """The handles of the training towers; none for a trainer that has no towers."""
    if not isinstance(trainer, TowerTrainer) or trainer.tower_func is None:
        return []
    return list(trainer.towers.training())


class EndOfTraining:
    """Tells, in `_after_train`, whether training ended by an error.

    Make it in `_before_train`: an exception that was being handled already then does not count.
    """

    def __init__(self) -> None:
        self._outer = sys.exc_info()[1]

    def by_error(self) -> bool:
        """Whether an exception (Ctrl-C included) is ending the training just now."""
        current = sys.exc_info()[1]
        return current is not None and current is not self._outer
