"""A stand-in for the trainer that callbacks expect, where a plain `MonitoredTrainingSession` runs the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorpack.callbacks import Callback, Callbacks, Monitors
from tensorpack.train.base import Trainer
from tensorpack.utils import logger

from towernmt.core.loop import ResumableLoop
from towernmt.core.tensors import Session
from towernmt.core.tf_compat import tf1

_NO_END = 9999999
"""tensorpack's `max_epoch` for a training without an end."""


class HookTrainer(Trainer):
    """tensorpack's `Trainer` without a loop. It is told of each step, and calls its callbacks as a loop does.

    Args:
        callbacks: in their order.
        monitors: tensorpack's, which get the scalars.
        steps_per_epoch: 0 for one endless epoch.
    """

    def __init__(self, callbacks: list[Callback], monitors: list[Any], steps_per_epoch: int) -> None:
        super().__init__()
        self.monitors = Monitors(monitors)
        self.callbacks: list[Any] = [*callbacks, *monitors, self.monitors]
        self._callbacks = Callbacks(self.callbacks)
        self.loop = ResumableLoop()
        self._epoch_steps = steps_per_epoch
        self._running = False
        self.diverged = False

    def setup(self) -> None:
        """Let the callbacks build in the default graph."""
        self._step = tf1.train.get_or_create_global_step()
        self._callbacks.setup_graph(self)     # callbacks may be asked for their step even after training

    def enter(self, session: Session) -> None:
        """Begin training in `session`, or go on in it if it replaces one that was lost."""
        self.sess = self.hooked_sess = session
        with session.as_default():
            self.loop._global_step = int(session.run(self._step))
            if self._running:
                return
            self._running = True
            steps = self._epoch_steps or _NO_END
            self.loop.config(steps, self.loop._global_step // steps + 1, _NO_END)
            self._callbacks.before_train()
            self.loop._global_step = int(session.run(self._step))
            self._begin_epoch(self.loop.starting_epoch)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the raw session the default one, as callbacks expect."""
        with self.sess.as_default():
            yield

    def count_step(self, session: Session) -> bool:
        """Read the global step; returns whether the run was a training step."""
        self.sess = self.hooked_sess = session
        before, self.loop._global_step = self.loop._global_step, int(session.run(self._step))
        return self.loop._global_step > before

    def after_step(self) -> None:
        """Do what a loop does after a step, and after the last step of an epoch."""
        self._callbacks.trigger_step()
        if self._epoch_steps and self.loop._global_step % self._epoch_steps == 0:
            self._callbacks.after_epoch()
            logger.info(f"Epoch {self.loop.epoch_num} (global_step {self.loop.global_step}) finished, time:"
                        f"{time.monotonic() - self._epoch_began:.3g} seconds.")
            self._callbacks.trigger_epoch()
            self._begin_epoch(self.loop.epoch_num + 1)
        else:
            self.loop._local_step += 1

    def leave(self) -> None:
        """Call the callbacks' `after_train`.

        Raises:
            Exception: the first that a callback raised; raised after all callbacks have ended.
        """
        if not self._running:
            return
        self._running = False
        errors: list[Exception] = []
        with self.entered():
            for callback in self.callbacks:
                try:
                    callback.after_train()
                except Exception as error:
                    errors.append(error)
        for later in errors[1:]:
            logger.error(f"At the end of training: {later}")
        if errors:
            raise errors[0]

    def _begin_epoch(self, number: int) -> None:
        self._epoch_began = time.monotonic()
        self.loop._epoch_num = number
        self._callbacks.before_epoch()
        self.loop._local_step = 0       # of the coming step: callbacks use it before the step is made
