"""Save checkpoints during training: every N steps or minutes, and at the end."""

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

from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.stateful import (
    EndOfTraining,
    Period,
    ScoreWatcher,
    StatefulCallback,
    all_callbacks,
    find_callbacks,
    with_inner_callbacks,
)
from towernmt.checkpoint.checkpoint_files import (
    CHECKSUM,
    STATE,
    CheckpointState,
    check_position_settings,
    checkpoint_path,
    keep_last,
    latest_checkpoint,
    read_state,
    remove_unfinished,
    step_of,
    write_checkpoint,
    write_state,
)
from towernmt.checkpoint.saved_run import RunFiles
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import weights_of_graph
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.terminal_log import DETAIL
from towernmt.core.tf_compat import tf1
from towernmt.input_source.input_callback import InputCallback


class CheckpointSaver(Callback):
    """Writes checkpoints for an exact resume: parameters, optimizer, clock, data position and state of the callbacks.

    Put it after the NaN guard and after the callbacks whose state it saves. These may call `save_now()`; the saver
    updates the callbacks' state in that checkpoint when it acts itself. If `directory` is inside a run, each checkpoint
    also restores removed settings, vocabularies and code of the run.

    Args:
        directory: directory of the checkpoints `step-N`.
        every_steps: interval between checkpoints, in updates; 0: none.
        every_minutes: time between checkpoints, in minutes; 0: none.
        keep: number of the latest checkpoints to keep.
        data: the `GeneralQueueInput` whose position is saved; None: the input of the trainer.
        made_from: fingerprints of the inputs of the run, such as `vocabulary` and `data`; a checkpoint with different
            fingerprints is refused.
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
        """Return the checkpoint from which training would resume, or None."""
        return latest_checkpoint(self.directory)

    def restore(self, checkpoint: Path, callbacks: list[Any]) -> None:
        """Restore the data position and the state of the callbacks; `RestoreCheckpoint` restores the variables.

        Raises:
            CheckpointError: `state.json` is damaged, or the checkpoint has a different vocabulary or data.
        """
        state, file = read_state(checkpoint), checkpoint / STATE
        for name, fingerprint in self.made_from.items():
            if state.made_from.get(name, fingerprint) != fingerprint:
                raise CheckpointError(f"{checkpoint} was made with a different {name}: pass the same {name}, or "
                                      "train in another directory.")
        if hasattr(self.data, "start_from"):
            check_position_settings(state, checkpoint, self._position_settings())
            self._restore_position(state, file)
        for callback in _stateful(callbacks):
            restore_callback(callback, state.callbacks, file)
        saved_state = json.loads(file.read_bytes())
        del saved_state[CHECKSUM], saved_state["format"]
        self._saved_step, self._saved_state = state.step, saved_state

    def _position_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(json.dumps(getattr(self.data, "position_settings", {})))
        return settings

    def _restore_position(self, state: CheckpointState, file: Path) -> None:
        if state.position is None and state.step > 0:
            raise CheckpointError(f"{file}: the field `position` is null after {state.step} updates, so the data "
                                  "would start again: restore the file, or remove its directory to resume from the "
                                  "previous checkpoint.")
        if state.position is not None:
            try:
                self.data.start_from(state.position)
            except DataError as error:
                raise CheckpointError(f"{file}: the field `position`: {error}") from error

    def save_now(self) -> Path | None:
        """Write the checkpoint of the current step unless it exists.

        Returns:
            the path of the checkpoint; None after divergence, and if training has ended within an update.
        """
        step = self.trainer.loop.global_step
        if getattr(self.trainer, "diverged", False):
            return None
        if getattr(self.trainer, "in_update", False) and self._end.by_error():
            logger.info(f"Training was interrupted within update {step + 1}: no checkpoint is written. The same "
                        "command resumes from the last checkpoint.")
            return None
        if self._saved_step != step or not self._exists(step):
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
        if self._saved_step != self.trainer.loop.global_step:       # it is that of an earlier training
            self._saved_step = self._saved_state = None
        try:
            self._refuse_restart()
        except SettingsError:
            self._lock.release()
            raise
        if self.data is None:   # tensorpack's TrainConfig does not set it
            self.data = next((callback.data for callback in find_callbacks(self.trainer, InputCallback)), None)
        self._directory_identity = _identity(self.directory)
        self._run_files = RunFiles(self.directory.parent)
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
        if not self._lock.is_held:     # training has not started
            return
        try:
            checkpoint = self.save_now()
            if _identity(self.directory) == self._directory_identity:
                self._run_files.restore()
            if checkpoint is not None:   # callbacks may have changed since the step was saved
                self._write_state()
        finally:
            self._lock.release()

    def _refuse_restart(self) -> None:
        """Refuse to train from an earlier step than that of existing checkpoints, which would be overwritten.

        Raises:
            SettingsError: the last checkpoint was not restored, as with tensorpack's own `TrainConfig`.
        """
        latest, step = self.latest(), self.trainer.loop.global_step
        if latest is not None and self._saved_step is None and step_of(latest) > step:
            raise SettingsError(f"{self.directory} holds a checkpoint of step {step_of(latest)}, but training starts "
                                f"at step {step}: tensorpack's TrainConfig does not resume. Import TrainConfig from "
                                "towernmt.train (after `from tensorpack import *`, which overwrites the name), or pass "
                                "another directory to CheckpointSaver.")

    def _exists(self, step: int) -> bool:
        return (checkpoint_path(self.directory, step) / STATE).is_file()

    def _check_directory(self) -> None:
        """Refuse to write into a directory that was replaced, because checkpoints alone are not a run.

        Raises:
            CheckpointError: the directory was removed or renamed.
        """
        if _identity(self.directory) != self._directory_identity:
            raise CheckpointError(f"{self.directory} was removed, renamed or replaced during training. Restore it, and "
                                  "run the same command to resume from its last checkpoint.")

    def _write_state(self) -> None:
        step = self.trainer.loop.global_step
        state = self._state(step)
        if not self._exists(step):
            self._write(step)
        elif state != self._saved_state:
            self._check_directory()
            write_state(self.directory, step, state)
            self._saved_state = state

    def _write(self, step: int) -> None:
        for guard in find_callbacks(self.trainer, NaNGuard):
            guard.check_variables()
        self._check_directory()
        self._run_files.restore()
        session = self.trainer.sess
        # A step that failed may have been counted already, but the parameters are those of `step`.
        session.run(self._set_step, {self._step_value: step})
        start_time = time.monotonic()
        state = self._state(step)
        write_checkpoint(self._saver, session, self.directory, step, state)
        keep_last(self.directory, self.keep)
        self._saved_step, self._saved_state = step, state
        self._period.restart()
        logger.info(f"Saved {checkpoint_path(self.directory, step)} ({time.monotonic() - start_time:.1f} s).",
                    extra=DETAIL if step == 0 else None)

    def _state(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "position": getattr(self.data, "last_position", None),
            "callbacks": {c.state_key: _state_of(c) for c in _stateful(all_callbacks(self.trainer))},
            WEIGHTS: self._weights,
            **({"made_from": self.made_from} if self.made_from else {}),
            **({"position_settings": order} if (order := self._position_settings()) else {}),
        }


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return device and inode of a directory, which differ if it is replaced; None if it does not exist."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def restore_callback(callback: StatefulCallback, states: Mapping[str, Any], file: Path) -> None:
    """Restore the state of a callback, if a checkpoint has it.

    Args:
        callback: the callback.
        states: the states of all callbacks in the checkpoint, by their keys.
        file: the `state.json` of the checkpoint.

    Raises:
        CheckpointError: another callback wrote the state, or it is damaged.
    """
    if callback.state_key not in states:
        return
    try:
        callback.restore_state(states[callback.state_key])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{file}: the field `callbacks.{callback.state_key}` is not what "
                              f"{type(callback).__name__} wrote ({type(error).__name__}: {error}); restore the file, "
                              "or remove its directory to resume from the previous checkpoint.") from error


def _state_of(callback: StatefulCallback) -> dict[str, Any]:
    """Return a copy of the state of a callback.

    Raises:
        SettingsError: JSON cannot represent the state.
    """
    state = deepcopy(callback.state())
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"The state of {type(callback).__name__} cannot be saved in a checkpoint ({error}). Its "
                            "method state() must return values that JSON can represent: for example, convert a number "
                            "of NumPy by float() or int(), and an array by tolist().") from error
    return state


def _stateful(callbacks: list[Any]) -> list[StatefulCallback]:
    stateful = [c for c in with_inner_callbacks(callbacks) if isinstance(c, StatefulCallback) and _has_state(c)]
    keys = [c.state_key for c in stateful]
    for key in keys:
        if keys.count(key) > 1:
            raise SettingsError(f"two callbacks save their state under the key '{key}'; give each a unique state_key.")
    return stateful


def _has_state(callback: StatefulCallback) -> bool:
    """Return whether a callback has a state; a `ScoreWatcher` that does not override `state` has none."""
    return not isinstance(callback, ScoreWatcher) or type(callback).state is not StatefulCallback.state
