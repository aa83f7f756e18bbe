"""Saving checkpoints while training goes on: every N steps or minutes, and at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.tfutils.common import get_global_step_var
from tensorpack.utils import logger

from towernmt.callbacks.lookup import EndOfTraining, all_callbacks, find_callbacks
from towernmt.callbacks.period import Period
from towernmt.callbacks.stateful import StatefulCallback
from towernmt.callbacks.stopping.nan_guard import NaNGuard
from towernmt.checkpoint.files import (
    checkpoint_path,
    keep_last,
    latest_checkpoint,
    remove_unfinished,
    write_checkpoint,
    write_state,
)
from towernmt.checkpoint.state import FORMAT, STATE, CheckpointState, read_state
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import weights_of_graph
from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf1


class CheckpointSaver(Callback):
    """Write checkpoints that a run resumes from exactly: parameters, optimizer, clock, position, callbacks.

    Put it after the NaN guard and after the callbacks whose state it keeps. One of these may call `save_now()`. The
    saver brings the callbacks' state in that checkpoint up to date when its own turn comes.

    Args:
        directory: where the directories `step-N` go.
        every_steps: save after every so many steps; 0 for never.
        every_minutes: save when so many minutes went by since the last time; 0 for never.
        keep: how many of the last checkpoints stay.
        data: the input source whose position is saved, `GeneralQueueInput`; None to save no position.
        made_from: fingerprints of what the run is made from, such as `vocabulary` and `data`; a checkpoint that was
            made from another is refused.
    """

    def __init__(self, directory: str | Path, every_steps: int = 1000, every_minutes: float = 0.0, keep: int = 5,
                 data: Any = None, made_from: Mapping[str, str] | None = None) -> None:
        if keep < 1:
            raise SettingsError(f"checkpoint.keep={keep} must be at least 1.")
        self.directory = Path(directory)
        self.keep, self.data = keep, data
        self.made_from = dict(made_from or {})
        self._period = Period(every_steps, every_minutes)
        self._saved_step: int | None = None
        self._saved_state: dict[str, Any] | None = None
        self._lock = DirectoryLock(self.directory, "training")

    def latest(self) -> Path | None:
        """The checkpoint that training would resume from."""
        return latest_checkpoint(self.directory)

    def restore(self, checkpoint: Path, callbacks: list[Any]) -> None:
        """Give the data position and the memory of the callbacks back; variables come by `RestoreCheckpoint`.

        Raises:
            CheckpointError: the checkpoint's `state.json` is damaged, or was made from another vocabulary or data.
        """
        state, place = read_state(checkpoint), checkpoint / STATE
        for what, fingerprint in self.made_from.items():
            if state.made_from.get(what, fingerprint) != fingerprint:
                raise CheckpointError(f"{checkpoint} was made from another {what} than is given now: pass that one, or "
                                      "begin anew in another directory.")
        if hasattr(self.data, "start_from"):
            self._restore_position(state, place)
        for callback in _stateful(callbacks):
            if callback.state_key in state.callbacks:
                _restore_callback(callback, state.callbacks[callback.state_key], place)
        self._saved_step, self._saved_state = state.step, json.loads(place.read_bytes())

    def _restore_position(self, state: CheckpointState, place: Path) -> None:
        if state.position is None and state.step > 0:
            raise CheckpointError(f"{place}: the field `position` is null after {state.step} updates, so the data "
                                  "would begin anew: put the file back, or remove its directory to go on from the "
                                  "checkpoint before it.")
        if state.position is not None:
            try:
                self.data.start_from(state.position)
            except DataError as error:
                raise CheckpointError(f"{place}: the field `position`: {error}") from error

    def save_now(self) -> Path | None:
        """The checkpoint of the present step, written if it is not there yet.

        Returns:
            None after divergence, and where training ends in the midst of an update: the last checkpoint stays.
        """
        step = self.trainer.loop.global_step
        if getattr(self.trainer, "diverged", False):
            return None
        if getattr(self.trainer, "in_update", False) and self._end.by_error():
            logger.info(f"Training ends in the midst of update {step + 1}: no checkpoint is written, and the same "
                        "command goes on from the last one.")
            return None
        if self._saved_step != step:
            self._write(step)
        return checkpoint_path(self.directory, step)

    def _setup_graph(self) -> None:
        self._saver = tf1.train.Saver(tf1.global_variables(), max_to_keep=None)
        self._weights = weights_of_graph()
        self._global_step = get_global_step_var()
        self._step_value = tf1.placeholder(self._global_step.dtype, [], "checkpoint_global_step")
        self._set_step = self._global_step.assign(self._step_value).op

    def _before_train(self) -> None:
        self._end = EndOfTraining()
        self._lock.acquire()
        self._identity = _identity(self.directory)
        remove_unfinished(self.directory)
        self._period.restart()
        if self._saved_step is None:
            self.save_now()

    def _trigger_step(self) -> None:
        if self._saved_step == self.global_step:
            self._write_state()
        elif self._period.due(self.global_step):
            self.save_now()

    def _after_train(self) -> None:
        if not self._lock.held:     # training did not begin
            return
        try:
            saved = self.save_now()
            if saved is not None:   # of a step that was saved already, what the callbacks learnt since
                self._write_state()
        finally:
            self._lock.release()

    def _check_place(self) -> None:
        """Refuse to write where the directory is another by now: checkpoints alone are no run.

        Raises:
            CheckpointError: it was removed or renamed.
        """
        if _identity(self.directory) != self._identity:
            raise CheckpointError(f"{self.directory} is not there any more, or is another directory: it was removed or "
                                  "renamed while training wrote there. Put it back, and start the same command to go "
                                  "on from its last checkpoint.")

    def _write_state(self) -> None:
        step = self.trainer.loop.global_step
        state = self._state(step)
        if state != self._saved_state:
            self._check_place()
            write_state(self.directory, step, state)
            self._saved_state = state

    def _write(self, step: int) -> None:
        for guard in find_callbacks(self.trainer, NaNGuard):
            guard.check_variables()
        self._check_place()
        session = self.trainer.sess
        # A step that failed half-way may have counted itself already; the parameters are those of `step`.
        session.run(self._set_step, {self._step_value: step})
        started = time.monotonic()
        state = self._state(step)
        write_checkpoint(self._saver, session, self.directory, step, state)
        keep_last(self.directory, self.keep)
        self._saved_step, self._saved_state = step, state
        self._period.restart()
        logger.info(f"Saved {checkpoint_path(self.directory, step)} ({time.monotonic() - started:.1f} s).",
                    extra=DETAIL if step == 0 else None)

    def _state(self, step: int) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": step,
            "position": getattr(self.data, "last_position", None),
            "callbacks": {c.state_key: deepcopy(c.state()) for c in _stateful(all_callbacks(self.trainer))},
            WEIGHTS: self._weights,
            **({"made_from": self.made_from} if self.made_from else {}),
        }


def _identity(directory: Path) -> tuple[int, int] | None:
    """Identifies a directory, to tell it from another of the same name; None: there is none."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _restore_callback(callback: StatefulCallback, state: Any, place: Path) -> None:
    try:
        callback.restore_state(state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{place}: the field `callbacks.{callback.state_key}` is not what "
                              f"{type(callback).__name__} wrote ({type(error).__name__}: {error}); put the file back, "
                              "or remove its directory to go on from the checkpoint before it.") from error


def _stateful(callbacks: list[Any]) -> list[StatefulCallback]:
    found = [c for c in callbacks if isinstance(c, StatefulCallback)]
    keys = [c.state_key for c in found]
    for key in keys:
        if keys.count(key) > 1:
            raise SettingsError(f"two callbacks save their state under the key '{key}'; give each its own state_key.")
    return found


