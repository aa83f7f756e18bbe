"""Model, trainer, input and callbacks of one's own, which take the place of a run's usual ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from towernmt.input_source import GeneralQueueInput
from towernmt.run.run_model import model_from_settings
from towernmt.run.settings import Settings
from towernmt.train.trainer import SyncMultiGPUTrainer


@dataclass(frozen=True)
class Components:
    """What makes a run's model, trainer, input and callbacks; `towernmt.run.train` says what each is called with."""

    model: Callable[[Settings], Any] = model_from_settings
    trainer: Callable[..., SyncMultiGPUTrainer] = SyncMultiGPUTrainer
    source: Callable[..., GeneralQueueInput] = GeneralQueueInput
    callbacks_before: Callable[[], list[Any]] = list
    callbacks_after: Callable[[], list[Any]] = list


def Parts(model: Callable[[Settings], Any] = model_from_settings,
          trainer: Callable[..., SyncMultiGPUTrainer] = SyncMultiGPUTrainer,
          source: Callable[..., GeneralQueueInput] = GeneralQueueInput,
          callbacks: Callable[[], list[Any]] = list) -> Components:
    """The former way to give `train` what are arguments of its own by now."""
    return Components(model, trainer, source, callbacks)
