"""What ends or skips in one process does so in all: exceptions as decisions of the world, and back."""

from __future__ import annotations

from typing import Any

from tensorpack.train.base import StopTraining

from towernmt.core.errors import DivergenceError, WorkerLostError
from towernmt.core.tf_compat import tf
from towernmt.core.world import Decision, World

ENDINGS = (StopTraining, DivergenceError, tf.errors.OutOfRangeError)
"""What ends all processes together. Any other exception ends its process, and the others find that it is gone."""
LOST = (tf.errors.OpError, WorkerLostError)
"""What ends a process by itself in the midst of a step, of which part may be done."""


def agree_on(error: Exception | None, world: World) -> Decision:
    """What all processes do after what happened in each.

    Args:
        error: one of `ENDINGS`, or TensorFlow's `ResourceExhaustedError` for a batch to be skipped; None where all went
            well.
    """
    if error is None:
        return world.agree(Decision.GO_ON)
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return world.agree(Decision.SKIP_BATCH)
    return world.agree(Decision.DIVERGED if isinstance(error, DivergenceError) else Decision.END)


def end_by(decision: Decision, error: Exception | None, trainer: Any) -> None:
    """End training where that was decided, by this process's own error or for another process's.

    Raises:
        Exception: `error`, if there is one.
        StopTraining: another process asked for the end.
        DivergenceError: another process found a value that is not finite.
    """
    if decision is Decision.DIVERGED:
        trainer.diverged = True
    if error is not None:
        raise error
    if decision is Decision.END:
        raise StopTraining("another process asked for the end")
    if decision is Decision.DIVERGED:
        raise DivergenceError(f"Training diverged at step {trainer.loop.global_step}: another process found a value "
                              "that is not finite (NaN or infinite); its log names it.")
