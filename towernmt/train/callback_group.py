"""The group of all callbacks: each callback sees its own runs, and all processes end at the same step.

An exception that ends training in one process, normally or because a value is not finite, does so in all. An
interrupted update leaves variables that belong to no step, so `UpdateMark` records whether an update is in progress.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.callbacks.group import Callbacks
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger

from towernmt.callbacks.run_hooks import refuse_shared_feeds, separate_runs
from towernmt.cluster.joining import DifferentBatchesError, refuse_different_batches
from towernmt.core.errors import DivergenceError, WorkerLostError
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import Decision, World


class UpdateMark(tf1.train.SessionRunHook):
    """Sets `trainer.in_update` during an update; must be the last hook of the train step.

    The mark is set once no callback can refuse the run any more, and removed when all callbacks have seen its results.
    If an exception is raised in between (such as Ctrl-C, which Python raises when TensorFlow has returned), the mark
    stays set: the parameters may be those of the next step, but the step and the position are not.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def before_run(self, run_context: Any) -> None:
        self._trainer.in_update = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._trainer.in_update = False


COMMON_ENDINGS = (StopTraining, DivergenceError, tf.errors.OutOfRangeError)
"""Exceptions that end all processes together. Any other one ends its own process, and the others detect the loss."""
LOST_PROCESS_ERRORS = (tf.errors.OpError, WorkerLostError)
"""Exceptions that end only their own process within a step, which may then be incomplete."""


COMPARED_STEPS = 100
"""Number of steps after which several processes compare their data positions again."""


def agree_on(error: Exception | None, world: World) -> Decision:
    """Return the common decision of all processes, each of which passes its own error.

    Args:
        error: one of `COMMON_ENDINGS`; None: no error.
        world: the processes that decide.
    """
    if error is None:
        return world.agree(Decision.CONTINUE)
    return world.agree(Decision.DIVERGED if isinstance(error, DivergenceError) else Decision.END)


def end_by(decision: Decision, error: Exception | None, trainer: Any) -> None:
    """End training if the processes decided so.

    Raises:
        Exception: `error`, if this process has one.
        StopTraining: another process ends training.
        DivergenceError: another process found a value that is not finite.
    """
    if decision is Decision.DIVERGED:
        trainer.diverged = True
    if error is not None:
        raise error
    if decision is Decision.END:
        raise StopTraining("another process ended training")
    if decision is Decision.DIVERGED:
        raise DivergenceError(f"Training diverged at step {trainer.loop.global_step}: another process found a value "
                              "that is not finite (NaN or infinite); its log names it.")


class CallbackGroup(Callbacks):
    """All callbacks of a trainer.

    If a callback ends training after a step (by a limit, a signal, patience, divergence or a custom rule), training
    ends in every process of the world after the same step: the processes agree once all callbacks have acted.

    If the `before_train` of a callback raises an exception, only the callbacks up to this one have their `after_train`
    called: the later ones have nothing to end, and would fail for lack of what their `before_train` prepares.

    tensorpack prints an exception of `after_train` and ignores it, so a last checkpoint that could not be written would
    look like success. Here the other callbacks still end, and the first exception is kept in `error`.

    tensorpack calls every callback at every run of the hooked session. Here each callback is called only at the runs
    that it belongs to (`towernmt.core.runs`), by default the train step.

    Attributes:
        error: the first exception of an `after_train`, or None.
    """

    def __init__(self, callbacks: Callbacks, world: World) -> None:
        """Replace a group that has been set up.

        Raises:
            SettingsError: two callbacks feed the same tensor.
        """
        super().__init__(callbacks.cbs)
        refuse_shared_feeds(self.cbs)
        self.trainer, self._world = callbacks.trainer, world
        self.error: Exception | None = None
        self._started: list[Callback] = []      # their `before_train` was called

    separates_runs = True

    def get_hooks(self) -> list[Any]:
        """Return the hooks of the world, then the callbacks as hooks for their own runs."""
        return [*self._world.run_hooks(), *separate_runs([*super().get_hooks(), UpdateMark(self.trainer)])]

    def _before_train(self) -> None:
        self._started = []
        for callback in self.cbs:
            self._started.append(callback)
            callback.before_train()

    def _before_epoch(self) -> None:
        self._act_together(super()._before_epoch)

    def trigger_step(self) -> None:
        step = self.trainer.loop.global_step
        if self._world.processes > 1 and step % COMPARED_STEPS == 0:
            self._refuse_different_batches(step)    # before a callback saves these updates
        self._act_together(super().trigger_step)

    def _refuse_different_batches(self, step: int) -> None:
        try:
            refuse_different_batches(getattr(self.trainer.data, "last_position", None), step, self._world)
        except DifferentBatchesError:
            self.trainer.diverged = True    # so that no checkpoint is written
            raise

    def _trigger_epoch(self) -> None:
        self._act_together(super()._trigger_epoch)

    def _act_together(self, act: Callable[[], None]) -> None:
        error: Exception | None = None
        try:
            act()
        except COMMON_ENDINGS as raised:
            error = raised
        decision = agree_on(error, self._world)
        if decision is not Decision.CONTINUE:
            end_by(decision, error, self.trainer)

    def _after_train(self) -> None:
        if self._world.processes > 1 and isinstance(sys.exc_info()[1], LOST_PROCESS_ERRORS):
            self.trainer.diverged = True    # the update may be incomplete
        for callback in self._started:
            try:
                callback.after_train()
            except Exception as error:
                if self.error is None:
                    self.error = error
                else:
                    self.log(error)

    def log(self, error: Exception) -> None:
        """Log an error that cannot be raised, because an earlier error is raised."""
        logger.error(f"At the end of training: {error}")
