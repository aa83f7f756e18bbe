"""Tells whether an update is being made: one that is broken off leaves a state that belongs to no step."""

from __future__ import annotations

from typing import Any

from towernmt.core.tf_compat import tf1


class UpdateMark(tf1.train.SessionRunHook):
    """Keeps `trainer.in_update`; to be the last of the train step's hooks.

    The mark is there from when no callback can refuse the run until all have seen what it made. An exception between
    these, such as the one of Ctrl-C, which Python raises when TensorFlow has returned, leaves it there: the parameters
    may be those of the next step, but step and position are not.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def before_run(self, run_context: Any) -> None:
        self._trainer.in_update = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._trainer.in_update = False
