"""Stop training on SIGTERM, SIGHUP or Ctrl-C, after the current step and with a checkpoint."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger


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
