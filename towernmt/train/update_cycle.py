"""An update from several batches (THUMT's update cycle; gradient accumulation): the operations, and their order."""

from __future__ import annotations

from collections.abc import Callable

from tensorpack.utils import logger

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf
from towernmt.optim.gradients import Accumulator, GradsAndVars


class UpdateCycle:
    """The operations of an update of K batches.

    The gradients of K - 1 batches are added up, weighted by their target tokens; the last batch's are added within the
    train step, and the update is made from the mean over the tokens of all.

    Args:
        batches: K, 2 or more.
        gradients: of the present batch, averaged over its tokens.
        weight: float32 `[]`, the tokens of the present batch.
        reduce: the gradients of all processes, of those of this one; once an update.
        apply: makes the operation of an update from gradients, under a name.
        count_step: adds one to the global step.
    Attributes:
        train_op: takes the last batch, and makes the update.
    """

    def __init__(self, batches: int, gradients: GradsAndVars, weight: Tensor,
                 reduce: Callable[[GradsAndVars], GradsAndVars],
                 apply: Callable[[GradsAndVars, str], Operation], count_step: Operation) -> None:
        self.batches = batches
        accumulator, self._clock = Accumulator(gradients, weight), graph_state().clock
        self._began = 0     # what the clock was then
        advance = [] if self._clock is None else [self._clock.advance]
        self._first: Operation = tf.group(accumulator.assign, *advance)
        self._next: Operation = tf.group(accumulator.add, *advance)
        self.train_op = apply(reduce(accumulator.with_current()), "train_op")
        self._flush: Operation = tf.group(apply(reduce(accumulator.without_current()), "flush_op"), count_step)

    def begin(self, session: Session) -> None:
        """Remember the clock, before the first batch."""
        if self._clock is not None:
            self._began = int(session.run(self._clock.now))

    def give_up(self, session: Session) -> None:
        """No update comes from the batches that were collected: the clock is what it was before them."""
        if self._clock is not None:
            self._clock.variable.load(self._began, session)

    def collect_op(self, number: int) -> Operation:
        """Takes batch `number` of a cycle, from 0 to K - 2, and adds its gradients to the sums."""
        return self._next if number else self._first

    def flush(self, session: Session, collected: int) -> None:
        """The data ended inside a cycle: update from the batches that were there."""
        logger.info(f"The data ended after {collected} of {self.batches} batches of an update cycle: "
                    "the last update is made from these.")
        session.run(self._flush)
