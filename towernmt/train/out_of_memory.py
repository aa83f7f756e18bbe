"""Batches that do not fit into memory: they are left out and named, up to a limit."""

from __future__ import annotations

from typing import Any

from tensorpack.tfutils.common import get_global_step_var
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.input_source import GeneralQueueInput


class OutOfMemorySkipping:
    """Goes on behind batches that ran out of memory.

    Args:
        limit: batches that may be left out; one more ends training. 0: the first one does.
    Attributes:
        skipped: how many were left out.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.skipped = limit, 0
        self._position, self._behind = "", 0    # the last batch: so many behind a position

    def skip(self, trainer: Any, error: Any) -> None:
        """Leave a batch out (within an update cycle, those collected before it as well).

        Args:
            trainer: whose step failed.
            error: TensorFlow's `ResourceExhaustedError`; None if another process had it.
        Raises:
            SettingsError: there were too many.
        """
        self.skipped += 1
        position = getattr(trainer._input, "last_position", None) or "the beginning"
        self._position, self._behind = position, self._behind + 1 if self._position == position else 1
        where = "in another process" if error is None else _telling_line(str(error.message))
        what = (f"step {trainer.loop.global_step + 1}: batch {self._behind} behind {position} ran out of memory "
                f"({where})")
        if self.skipped > self._limit:
            raise SettingsError(f"{what}, and recovery.skip_out_of_memory={self._limit} allows no more: make "
                                "data.batch_tokens smaller (and train.update_cycle larger).") from error
        logger.warning(f"{what}; it is skipped, number {self.skipped} of {self._limit} at most.")
        trainer.monitors.put_scalar("skipped_batches", self.skipped)
        if isinstance(trainer._input, GeneralQueueInput):
            trainer._input.count_lost_batch()
        get_global_step_var().load(trainer.loop.global_step, trainer.sess)  # the failed run may have counted itself


def _telling_line(message: str) -> str:
    """Of TensorFlow's many lines, the one that says what did not fit."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["?"]
    return next((line for line in lines if "OOM" in line), lines[0])[:200]
