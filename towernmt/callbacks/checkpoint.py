"""Saving checkpoints while training goes on: every N steps or minutes, and at the end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.tfutils.common import get_global_step_var
from tensorpack.utils import logger

from towernmt.callbacks.every import Every
from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.stateful import StatefulCallback
from towernmt.callbacks.surroundings import all_callbacks, find_callbacks
from towernmt.errors import SettingsError
from towernmt.terminal_log import DETAIL
from towernmt.tf_compat import tf1
from towernmt.train.checkpoint import (
    checkpoint_path,
    keep_last,
    latest_checkpoint,
    read_state,
    remove_unfinished,
    write_checkpoint,
    write_state,
)
from towernmt.train.weights import KEY as WEIGHTS
from towernmt.train.weights import weights_of_graph


class CheckpointSaver(Callback):
    """Write checkpoints that a run resumes from exactly: parameters, optimizer, clock, position, callbacks.

    Put it behind the NaN guard and behind the callbacks whose state it keeps. One of these may call
    `save_now()`; the state of the callbacks in that checkpoint is brought up to date when the saver's own
    turn comes.

    Args:
        directory: where the directories `step-N` go.
        every_steps: save after every so many steps; 0 for never.
        every_minutes: save when so many minutes went by since the last time; 0 for never.
        keep: how many of the last checkpoints stay.
        data: the input source whose position is saved, `GeneralQueueInput`; None to save no position.
    """

    def __init__(self, directory: str | Path, every_steps: int = 1000, every_minutes: float = 0.0, keep: int = 5,
                 data: Any = None) -> None:
        if keep < 1:
            raise SettingsError(f"train.keep_checkpoints={keep} must be at least 1.")
        self.directory = Path(directory)
        self.keep, self.data = keep, data
        self._every = Every(every_steps, every_minutes)
        self._saved_step: int | None = None

    def latest(self) -> Path | None:
        """The checkpoint that training would resume from."""
        return latest_checkpoint(self.directory)

    def restore(self, checkpoint: Path, callbacks: list[Any]) -> None:
        """Give the data position and the memory of the callbacks back; variables come by `RestoreCheckpoint`."""
        state = read_state(checkpoint)
        if self.data is not None and state["position"] is not None:
            self.data.start_from(state["position"])
        for callback in _stateful(callbacks):
            if callback.state_key in state["callbacks"]:
                callback.restore_state(state["callbacks"][callback.state_key])
        self._saved_step = state["step"]

    def save_now(self) -> Path | None:
        """The checkpoint of the present step, written if it is not there yet; None after divergence."""
        step = self.trainer.loop.global_step
        if getattr(self.trainer, "diverged", False):
            return None
        if self._saved_step != step:
            self._write(step)
        return checkpoint_path(self.directory, step)

    def _setup_graph(self) -> None:
        if self.directory.is_dir():
            remove_unfinished(self.directory)
        self._saver = tf1.train.Saver(tf1.global_variables(), max_to_keep=None)
        self._weights = weights_of_graph()
        self._global_step = get_global_step_var()
        self._step_value = tf1.placeholder(self._global_step.dtype, [], "checkpoint_global_step")
        self._set_step = self._global_step.assign(self._step_value).op

    def _before_train(self) -> None:
        self._every.restart()
        if self._saved_step is None:
            self.save_now()

    def _trigger_step(self) -> None:
        if self._saved_step == self.global_step:
            write_state(self.directory, self.global_step, self._state(self.global_step))
        elif self._every.due(self.global_step):
            self.save_now()

    def _after_train(self) -> None:
        self.save_now()

    def _write(self, step: int) -> None:
        for guard in find_callbacks(self.trainer, NaNGuard):
            guard.check_variables()
        session = self.trainer.sess
        # A step that failed half-way may have counted itself already; the parameters are those of `step`.
        session.run(self._set_step, {self._step_value: step})
        started = time.monotonic()
        write_checkpoint(self._saver, session, self.directory, step, self._state(step))
        keep_last(self.directory, self.keep)
        self._saved_step = step
        self._every.restart()
        logger.info(f"Saved {checkpoint_path(self.directory, step)} ({time.monotonic() - started:.1f} s).",
                    extra=DETAIL if step == 0 else None)

    def _state(self, step: int) -> dict[str, Any]:
        return {
            "format": 1,
            "step": step,
            "position": getattr(self.data, "last_position", None),
            "callbacks": {c.state_key: c.state() for c in _stateful(all_callbacks(self.trainer))},
            WEIGHTS: self._weights,
        }


def _stateful(callbacks: list[Any]) -> list[StatefulCallback]:
    found = [c for c in callbacks if isinstance(c, StatefulCallback)]
    keys = [c.state_key for c in found]
    for key in keys:
        if keys.count(key) > 1:
            raise SettingsError(f"two callbacks save their state under the key '{key}'; give each its own state_key.")
    return found


