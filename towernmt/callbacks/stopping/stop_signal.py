"""SIGTERM, SIGHUP and Ctrl-C: end training after the present step, with a checkpoint."""

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
    """The first SIGTERM, SIGHUP or SIGINT ends training cleanly after the present step; a second Ctrl-C, at once.

    SIGHUP, which comes when the terminal is closed, is left alone where it is ignored, as under `nohup`.

    Put it last, so that further signals do not disturb the other callbacks while they end (save, validate).
    Acts only if training runs in the main thread, where Python handles signals.

    A main thread that waits inside TensorFlow, say for a feeder that is blocked, does not run Python's
    handlers. So a small thread is woken by the signal itself (`signal.set_wakeup_fd`): if no step
    has ended within `grace` seconds, it calls `interrupt`, which makes the wait end (closes the input queue).

    Attributes:
        received: the signal that came first, or None. A program exits with 128 + received.
    """

    _chief_only = False     # a signal may come to any process of the world, and ends all

    def __init__(self, interrupt: Callable[[], None] | None = None, grace: float = 5.0) -> None:
        """
        Args:
            interrupt: called from another thread, once; makes a blocked step end.
            grace: seconds that a step may take to end after the first signal, and that the main thread
                may take to notice a second Ctrl-C before the process exits without it.
        """
        self._interrupt, self._grace = interrupt, grace
        self.received: int | None = None
        self._installed = False

    def _before_train(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            logger.info("Training is not in the main thread: it does not end cleanly on SIGTERM or Ctrl-C.")
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
        """The Python handler, in the main thread."""
        if self.received is not None and number == signal.SIGINT:
            self._second_noticed.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        if self.received is None:
            self.received = number
            logger.info(f"{signal.Signals(number).name}: training ends after this step, with a checkpoint."
                        + (" Ctrl-C again ends it at once." if number == signal.SIGINT else ""))

    def _watch(self) -> None:
        """The watcher thread: it reads one byte for each signal, even while no handler can run."""
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
            os._exit(128 + signal.SIGINT)  # checkpoints are complete or not there

    def _unblock(self) -> None:
        if self._interrupt is not None and not self._finished.is_set():
            self._interrupt()


def _signals() -> tuple[int, ...]:
    hangup = getattr(signal, "SIGHUP", None)      # not on Windows
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, hangup
