"""Update cycles (THUMT's term for gradient accumulation), and the skipping of batches that run out of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.tfutils.common import get_global_step_var
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.gpus import with_gpu_numbers
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Operation, Session
from towernmt.core.tf_compat import tf
from towernmt.input_source import GeneralQueueInput
from towernmt.optim.gradients import Accumulator, GradsAndVars


class UpdateCycle:
    """The operations of an update from K batches.

    The gradients of the first K - 1 batches are summed, weighted by their target tokens. The train step adds those of
    the last batch, and makes the update from the mean over the tokens of all K batches.

    Args:
        batches: K, at least 2.
        accumulators: the sums of the gradients of this process, or those of each of its towers.
        update: makes the operation of an update from the gradients of each accumulator, and a name.
        count_flush: adds one to the global step in an update that runs no tower.

    Attributes:
        train_op: reads the last batch and makes the update.
    """

    def __init__(self, batches: int, accumulators: Sequence[Accumulator],
                 update: Callable[[list[GradsAndVars], str], Operation], count_flush: Operation) -> None:
        self.batches, self._clock = batches, graph_state().clock
        self._start = 0     # the clock at the start of the cycle
        advance = [] if self._clock is None else [self._clock.advance]
        self._first: Operation = tf.group(*[a.assign for a in accumulators], *advance)
        self._next: Operation = tf.group(*[a.add for a in accumulators], *advance)
        self.train_op = update([a.with_current() for a in accumulators], "train_op")
        state = graph_state()
        count_step, state.count_step = state.count_step, count_flush
        self._flush: Operation = tf.group(update([a.without_current() for a in accumulators], "flush_op"),
                                           count_flush)
        state.count_step = count_step

    def begin(self, session: Session) -> None:
        """Remember the clock; call it before the first batch of a cycle."""
        if self._clock is not None:
            self._start = int(session.run(self._clock.now))

    def give_up(self, session: Session) -> None:
        """Reset the clock to the start of the cycle, because the collected batches make no update."""
        if self._clock is not None:
            self._clock.variable.load(self._start, session)

    def collect_op(self, number: int) -> Operation:
        """Return the operation that reads batch `number` (0 to K - 2) and adds its gradients to the sums."""
        return self._next if number else self._first

    def flush(self, session: Session, collected: int) -> None:
        """Make the update from the collected batches, because the data has ended within the cycle."""
        logger.info(f"The data ended after {collected} of {self.batches} batches of an update cycle: "
                    "the last update uses these.")
        session.run(self._flush)


class OutOfMemorySkipping:
    """Skips batches that run out of memory.

    Args:
        limit: maximum number of skipped batches; one more ends training.

    Attributes:
        skipped: number of batches skipped so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.skipped = limit, 0
        self._position, self._batch = "", 0     # the last skipped batch: its number after the position of an update

    def skip(self, trainer: Any, error: tf.errors.ResourceExhaustedError) -> None:
        """Skip a batch, and within an update cycle the batches collected before it.

        In a step that has failed in one process, the others wait for its gradients, and TensorFlow's collectives cannot
        be used any more. So several processes skip nothing, and the others end when this one does.

        Args:
            trainer: the trainer whose step failed.
            error: TensorFlow's `ResourceExhaustedError`.

        Raises:
            SettingsError: more batches than `limit` ran out of memory, or several processes train.
        """
        self.skipped += 1
        position = getattr(trainer._input, "last_position", None) or "the beginning"
        lost_before = self._batch if self._position == position else 0
        self._position, self._batch = position, lost_before + trainer._collected + 1
        failure = (f"step {trainer.loop.global_step + 1}: batch {self._batch} after {position} ran out of memory "
                   f"({with_gpu_numbers(_cause_line(str(error.message)))})")
        limit = f"recovery.skip_out_of_memory={self.limit} allows no more" if self.skipped > self.limit else ""
        if trainer.world.processes > 1:
            limit = "several processes cannot skip a batch"
            trainer.in_update = True    # parts of the update may have been made
        if limit:
            raise SettingsError(f"{failure}, and {limit}: make data.batch_tokens smaller (and train.update_cycle "
                                "larger), in a new run that starts from this one with init.checkpoint, because batches "
                                "cannot change within an epoch.") from error
        logger.warning(f"{failure}; skipping it, number {self.skipped} of at most {self.limit}.")
        trainer.monitors.put_scalar("skipped_batches", self.skipped)
        if isinstance(trainer._input, GeneralQueueInput):
            trainer._input.count_lost_batch()
        get_global_step_var().load(trainer.loop.global_step, trainer.sess)  # the failed run may have counted itself


def _cause_line(message: str) -> str:
    """Return the line of TensorFlow's message that names the tensor which did not fit."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["?"]
    return next((line for line in lines if "OOM" in line), lines[0])[:200]
