"""tensorpack's group of callbacks, in which each sees its own runs, and all processes end at the same step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tensorpack.callbacks.group import Callbacks
from tensorpack.utils import logger

from towernmt.callbacks.hooks.run_hooks import refuse_shared_feeds, separate_runs
from towernmt.core.world import Decision, World
from towernmt.train.agreement import ENDINGS, LOST, agree_on, end_by
from towernmt.train.update_mark import UpdateMark


class CallbackGroup(Callbacks):
    """All callbacks of a trainer.

    What a callback raises after a step to end training (limits, signals, patience, divergence; callbacks of one's own)
    ends it in every process of the world, after the same step: they agree once, when all callbacks have acted.

    tensorpack prints what a callback raises in `after_train` and forgets it: a last checkpoint that could
    not be written would look like success. Here the others still end, and the first such error is kept.

    tensorpack calls every callback at every run of the hooked session. Here each is called at the runs that it
    belongs to (`towernmt.core.runs`), by default the train step.

    Attributes:
        error: the first exception of an `after_train`, or None.
    """

    def __init__(self, callbacks: Callbacks, world: World) -> None:
        """Take the place of a group that was set up.

        Raises:
            SettingsError: two callbacks feed the same tensor.
        """
        super().__init__(callbacks.cbs)
        refuse_shared_feeds(self.cbs)
        self.trainer, self._world = callbacks.trainer, world
        self.error: Exception | None = None

    separates_runs = True

    def get_hooks(self) -> list[Any]:
        """The callbacks as hooks of the trainer's session, each for its own runs, behind those of the world."""
        return [*self._world.run_hooks(), *separate_runs([*super().get_hooks(), UpdateMark(self.trainer)])]

    def _before_epoch(self) -> None:
        self._act_together(super()._before_epoch)

    def trigger_step(self) -> None:
        self._act_together(super().trigger_step)

    def _trigger_epoch(self) -> None:
        self._act_together(super()._trigger_epoch)

    def _act_together(self, act: Callable[[], None]) -> None:
        error: Exception | None = None
        try:
            act()
        except ENDINGS as raised:
            error = raised
        decision = agree_on(error, self._world)
        if decision is not Decision.GO_ON:
            end_by(decision, error, self.trainer)

    def _after_train(self) -> None:
        if self._world.processes > 1 and isinstance(sys.exc_info()[1], LOST):
            self.trainer.diverged = True    # half an update may have been made
        for callback in self.cbs:
            try:
                callback.after_train()
            except Exception as error:
                if self.error is None:
                    self.error = error
                else:
                    self.log(error)

    def log(self, error: Exception) -> None:
        """Write an error into the log that will not be raised, because another one is."""
        logger.error(f"At the end of training: {error}")
