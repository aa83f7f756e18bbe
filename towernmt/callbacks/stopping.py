"""Stop training: at a limit, when a score stops improving, on a signal, or at a value that is not finite.

A limit is a number of updates or of minutes. SIGTERM, SIGHUP and Ctrl-C end training after the current step, with a
checkpoint. `NaNGuard` detects the first value that is not finite, and ends training before it is saved.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger

from towernmt.callbacks.stateful import Patience, ScoreWatcher, StatefulCallback, find_saver, training_towers
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import current_world
from towernmt.optim.gradients import all_finite, named_gradients


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
    checkpoint does not count, because the resumed run repeats that work.

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
        if self.elapsed_seconds >= 60 * self.minutes:
            raise StopTraining(f"the limit of {self.minutes:g} minutes is reached")

    def state(self) -> dict[str, Any]:
        return {"elapsed_seconds": self.elapsed_seconds}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._previous_seconds = float(state["elapsed_seconds"])


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


class StopOnSignal(Callback):
    """Ends training after the current step at the first SIGTERM, SIGHUP or Ctrl-C, and at once at a second Ctrl-C.

    SIGHUP, which is sent when the terminal is closed, is not handled if the process ignores it, as under `nohup`.

    Put this callback last, so that further signals do not interrupt the other callbacks while they save and validate at
    the end. It acts only if training runs in the main thread, where Python handles signals.

    While the main thread waits inside TensorFlow, for example for a blocked feeder, Python's handlers do not run. So
    the signal itself wakes a watcher thread (`signal.set_wakeup_fd`). If no step ends within `grace` seconds, this
    thread calls `interrupt`, which ends the wait by closing the input queue.

    Args:
        interrupt: ends a blocked step; called once, from another thread.
        grace: seconds in which a step must end after the first signal, and in which the main thread must react to a
            second Ctrl-C, before the process exits without it.

    Attributes:
        received: the first signal, or None. A program exits with 128 + received.
    """

    _chief_only = False     # a signal to any process ends all processes

    def __init__(self, interrupt: Callable[[], None] | None = None, grace: float = 5.0) -> None:
        self._interrupt, self._grace = interrupt, grace
        self.received: int | None = None
        self._installed = False

    def _before_train(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            logger.info("Training does not run in the main thread, so SIGTERM and Ctrl-C do not end it cleanly.")
            return
        self._step_ended = threading.Event()  # after the first signal
        self._second_noticed = threading.Event()  # by the main thread
        self._finished = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._handle) for number in _signals()}
        self._watcher = threading.Thread(target=self._watch, name="stop-signal", daemon=True)
        self._watcher.start()
        self._installed = True

    def _before_epoch(self) -> None:
        self._stop_if_received()

    def _trigger_step(self) -> None:
        self._stop_if_received()

    def _stop_if_received(self) -> None:
        if self.received is not None:
            self._step_ended.set()
            raise StopTraining(f"{signal.Signals(self.received).name} was received")

    def _after_train(self) -> None:
        if not self._installed:
            return
        self._installed = False
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_wakeup)
        for event in (self._finished, self._step_ended, self._second_noticed):
            event.set()
        self._writer.close()  # ends the watcher's read
        self._watcher.join()
        self._reader.close()

    def _handle(self, number: int, _: Any) -> None:
        """Handle a signal in the main thread."""
        if self.received is not None and number == signal.SIGINT:
            self._second_noticed.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        if self.received is None:
            self.received = number
            logger.info(f"{signal.Signals(number).name}: training ends after this step, with a checkpoint."
                        + (" Press Ctrl-C again to end it at once." if number == signal.SIGINT else ""))

    def _watch(self) -> None:
        """Read one byte for each signal, in the watcher thread, even while no handler can run."""
        count = 0
        while data := self._reader.recv(16):
            for number in data:
                if number == signal.SIGINT or (number in _signals() and count == 0):
                    count += 1
                    if count <= 2:
                        action = self._interrupt_if_stuck if count == 1 else self._exit_if_stuck
                        threading.Thread(target=action, name=f"stop-signal-{count}", daemon=True).start()

    def _interrupt_if_stuck(self) -> None:
        if not self._step_ended.wait(self._grace):
            self._unblock()

    def _exit_if_stuck(self) -> None:
        self._unblock()
        if not self._second_noticed.wait(self._grace):
            os._exit(128 + signal.SIGINT)  # checkpoints are written completely or not at all

    def _unblock(self) -> None:
        if self._interrupt is not None and not self._finished.is_set():
            self._interrupt()


def _signals() -> tuple[int, ...]:
    hangup = getattr(signal, "SIGHUP", None)      # not on Windows
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, hangup


_LOSS_SCALE_HINT = (
    "the loss scale has reached its minimum of {:g}, so the range of float16 is too narrow for this model: set "
    "train.precision=bfloat16 or float32, or ")


class NaNGuard(Callback):
    """Ends training at the first step whose loss, gradients or other watched tensors are not finite.

    Each step fetches one flag per tensor together with the update. A flag needs a sum of squares, which the global norm
    computes anyway. The flags are in the order of computation: the loss of every tower, `tensors`, then the gradients
    from the output back to the input. So the first bad tensor is the nearest to the cause. A skipped update, as in
    float16 at an overflow, is not a divergence (see `allow_skipped_update` in `optim.gradients`). The variables
    are checked before training, every `check_steps`, and before the saver writes (`check_variables`), because finite
    gradients can make a variable overflow.

    If a value is not finite, the guard sets `trainer.diverged`, at which the saver does not write, and raises
    DivergenceError. Put it before all callbacks that save.

    Args:
        loss: name of the loss in a training tower; "": the trainer's cost, or "loss" without a trainer.
        tensors: names of further tensors in the training towers that must be finite.
        check_steps: steps between checks of all trainable variables; 0: no such checks.
        last_checkpoint: returns the path of the last good checkpoint; None: the saver's latest one.
    """

    _chief_only = False

    def __init__(self, loss: str = "", tensors: Sequence[str] = (), check_steps: int = 100,
                 last_checkpoint: Callable[[], Any] | None = None) -> None:
        self._loss, self._names, self._check_steps = loss, list(tensors), check_steps
        self._last_checkpoint = last_checkpoint

    def _setup_graph(self) -> None:
        gradients = reversed(named_gradients(self.graph))       # from the output back to the input
        watched = [*self._tower_tensors(), *((f"gradient of {name}", gradient) for name, gradient in gradients)]
        self._watched = [name for name, _ in watched]
        self._flags = all_finite([tensor for _, tensor in watched])
        state = graph_state(self.graph)
        self._hint = ""
        if state.update_skipped is not None:
            self._flags |= state.update_skipped
            self._hint = _LOSS_SCALE_HINT.format(state.settings.loss_scaling.least)
        variables = tf1.trainable_variables()
        self._variables = [f"variable {v.op.name}" for v in variables]
        with tf1.name_scope("variables"):
            self._variable_flags = all_finite(variables) if variables else None
        self._last_flags: np.ndarray | None = None
        self.trainer.diverged = False

    def _before_train(self) -> None:
        self.check_variables()

    def _before_run(self, _: Any) -> list[Tensor]:
        return [self._flags]

    def _after_run(self, _: Any, values: Any) -> None:
        self._last_flags = values.results[0]  # bool [watched tensors]

    def _trigger_step(self) -> None:
        if self._last_flags is not None:
            self._refuse_bad(self._watched, self._last_flags, self._hint)
        if self._check_steps and self.global_step % self._check_steps == 0:
            self.check_variables()

    def check_variables(self) -> None:
        """Check every trainable variable now.

        Raises:
            DivergenceError: a variable is not finite.
        """
        if self._variable_flags is not None:
            self._refuse_bad(self._variables, self.trainer.sess.run(self._variable_flags))

    def _refuse_bad(self, names: Sequence[str], finite: np.ndarray, hint: str = "") -> None:
        if finite.all():
            return
        self.trainer.diverged = True
        name = names[int(np.argmin(finite))]
        checkpoint = self._last_good_checkpoint()
        raise DivergenceError(
            f"Training diverged at step {self.global_step}: the {name} is not finite (NaN or infinite). "
            + (f"The last good checkpoint is {checkpoint}, and nothing was saved after it; "
               if checkpoint else "No checkpoint was saved before; ")
            + hint + "lower optimizer.learning_rate, raise schedule.warmup_steps or set "
            "train.clip_norm (for example to 1.0), and start again.")

    def _last_good_checkpoint(self) -> Any:
        if self._last_checkpoint is not None:
            return self._last_checkpoint()
        latest = getattr(find_saver(self.trainer), "latest", None)
        return latest() if latest is not None else None

    def _tower_tensors(self) -> list[tuple[str, Tensor]]:
        """Return (readable name, tensor) of the loss and the named tensors, in each training tower."""
        towers = training_towers(self.trainer)
        costs = [] if self._loss else [cost for cost in (tower.output for tower in towers) if _is_cost(cost)]
        watched = _by_tower("loss", costs)
        for name in [*([] if costs else [self._loss or "loss"]), *self._names]:
            try:
                if towers:
                    tensors = [tower.get_tensor(name) for tower in towers]
                else:
                    tensors = [self.graph.get_tensor_by_name(name if ":" in name else f"{name}:0")]
            except KeyError:
                raise SettingsError(f"NaNGuard needs the tensor '{name}', which is not in the training tower: give a "
                                    "tensor this name, or name another one (NaNGuard(loss=...)).") from None
            watched += _by_tower(f"tensor {name}" if name in self._names else "loss", tensors)
        return watched


def _by_tower(label: str, tensors: list[Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"{label} of tower {index}" if len(tensors) > 1 else label, tensor)
            for index, tensor in enumerate(tensors)]


def _is_cost(output: Any) -> bool:
    """Return whether a tower function returned a cost; only with `SingleCostTrainer` it must."""
    return isinstance(output, tf.Tensor) and output.shape.rank == 0 and output.dtype.is_floating
