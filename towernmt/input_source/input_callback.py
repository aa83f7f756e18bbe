"""The callback of `GeneralQueueInput`: starts and stops the feeders, and waits for a batch before each step.

tensorpack's main loop takes `OutOfRangeError` for a normal end of training, and what a callback raises
in `after_train` is printed and forgotten. So an error of the feeders is raised where neither happens:
before the step that would find the queue closed.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from tensorpack.callbacks import Callback
from tensorpack.input_source import StagingInput
from tensorpack.tfutils.dependency import dependency_of_fetches
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger

from towernmt.core.runs import Run
from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf1
from towernmt.input_source.input_statistics import InputStatistics
from towernmt.input_source.staging import Known, Staging

if TYPE_CHECKING:
    from towernmt.input_source.queue_input import GeneralQueueInput


class InputCallback(Callback):
    """Starts the feeders before training, stops them after it, and acts before and after each
    `hooked_sess.run` that trains on the input.

    Before it: waits for a batch, counting the time; if none will come, raises the feeders' error, or
    tensorpack's `StopTraining` at the end of the data. After it: keeps the position that came out. With `Staging`
    the run gets a batch that left the queue in a run of its own; it counts when it is trained on.

    Attributes:
        counts: what went through so far.
    """

    _chief_only = False
    # It finds out which runs take a batch. Those of an accumulation come through `run_with_batch`.
    belongs_to = (Run.TRAIN_STEP, Run.SAMPLING, Run.VALIDATION, Run.DATA)
    serves_input = True

    def __init__(self, queue_input: GeneralQueueInput) -> None:
        self._input = queue_input
        self._tensorpack_staging: Any = None
        self._staged: deque[str] = deque()  # positions of the batches that are in StagingInput's areas
        self._taken: Known | None = None    # of the batch that the present run trains on, where `Staging` has it
        self._dequeued = 0                  # by the thread of `Staging`
        self._last_fetches: tuple[Any, bool] = (None, False)
        self._raised = False
        self.counts = InputStatistics()

    def raise_feeder_error(self) -> None:
        """Raise the feeders' error, once, if there is one and everything before it was dequeued."""
        run = self._input.run
        if run and run.error and not self._raised and self.counts.batches >= run.enqueued:
            self._raised = True
            raise run.error

    def run_with_batch(self, sess: Session, op: Operation, feed_dict: Any = None) -> str:
        """Run an operation that consumes one batch outside the hooks; the position after that batch."""
        if self._input.staging is not None:
            known = self._take_staged(self._input.staging)
            sess.run([self._input.staging.gets, op], feed_dict)
        else:
            self._await_batch()
            known, _ = sess.run([self._fetches(), op], feed_dict)
        return self._count(known)

    def count_lost_batch(self) -> None:
        """Count a batch that left the queue with a run that failed; its position stays unknown."""
        if self._input.staging is not None:
            self._input.staging.drop_taken(self._session)
        self.counts = self.counts.consumed(None if self.counts.target_tokens is None else 0.0)

    def _setup_graph(self) -> None:
        callbacks = getattr(getattr(self, "trainer", None), "_callbacks", None)
        for callback in getattr(callbacks, "cbs", []):
            if isinstance(callback, StagingInput.StagingCallback) and callback._input._input is self._input:
                self._tensorpack_staging = callback

    def _before_train(self) -> None:
        self.counts = InputStatistics(begin=time.perf_counter())
        self._session = tf1.get_default_session()
        self._input.start(self._session)
        if self._input.staging is not None:
            self._input.staging.start(self._stage)

    def _before_run(self, context: Any) -> Any:
        self._taken = None
        if not self._trains_on_input(context.original_args.fetches):
            return None
        if self._input.staging is not None:
            self._taken = self._take_staged(self._input.staging)
            return tf1.train.SessionRunArgs(self._input.staging.gets)
        if self._tensorpack_staging is not None and not self._tensorpack_staging._initialized:
            self._fill_staging(context.session)
        self._await_batch()
        return tf1.train.SessionRunArgs(self._fetches())

    def _after_run(self, context: Any, values: Any) -> None:
        if values.results is None:
            return
        self._staged.append(self._count(self._taken or values.results))
        self._input.last_position = self._staged.popleft()

    def _after_train(self) -> None:
        self._input.stop(self._session)
        if self._input.staging is not None:
            self._input.staging.stop()
        run = self._input.run
        if run and run.error and not self._raised:
            logger.warning("Training ended before it came to where feeding had failed: %s", run.error)

    def _trains_on_input(self, fetches: Any) -> bool:
        if self._last_fetches[0] is not fetches:
            ops = [self._input.position_tensor.op]
            if self._input.staging is not None:
                ops = self._input.staging.gets
            elif self._tensorpack_staging is not None:
                ops = [self._tensorpack_staging._input._get_unstage_ops()[0].op]
            self._last_fetches = fetches, any(dependency_of_fetches(fetches, op) for op in ops)
        return self._last_fetches[1]

    def _fill_staging(self, sess: Session) -> None:
        """What StagingInput's callback does before the first step, with the positions kept."""
        for _ in range(self._tensorpack_staging.nr_stage):
            self._await_batch()
            results, _ = sess.run([self._fetches(), self._tensorpack_staging.stage_op])
            self._staged.append(self._count(results))
        self._tensorpack_staging._initialized = True

    def _stage(self) -> Known | None:
        """In the thread of `Staging`: the next batch to the towers' devices; None if none will come."""
        run, staging = self._input.run, self._input.staging
        if run is None or staging is None or not run.wait_for_item(
                self._dequeued, self._input.patience, self._tell_wait):
            return None
        self._dequeued += 1     # if the copy to a device fails, the batch has left the queue all the same
        known, _ = self._session.run([self._fetches(), staging.puts])
        return known

    def _take_staged(self, staging: Staging) -> Known:
        begin = time.perf_counter()
        known = staging.take()
        self.counts = self.counts.waited(time.perf_counter() - begin)
        if known is None:
            self.raise_feeder_error()
            raise self._end()
        return known

    def _await_batch(self) -> None:
        run = self._input.run
        if run is None:
            return
        begin = time.perf_counter()
        more = run.wait_for_item(self.counts.batches, self._input.patience, self._tell_wait)
        self.counts = self.counts.waited(time.perf_counter() - begin)
        if more:
            return
        self.raise_feeder_error()
        if run.finished:
            raise self._end()

    def _tell_wait(self, seconds: float) -> None:
        run = self._input.run
        whom = run.awaited() if run else self._input.name
        logger.warning(f"Training has waited {seconds:.0f} s for a batch: {whom}. It goes on when one comes; "
                       "Ctrl-C ends it with a checkpoint.")

    def _end(self) -> StopTraining:
        return StopTraining(f"{self._input.name} ended after {self.counts.batches} batches")

    def _fetches(self) -> list[Tensor]:
        tokens = self._input.tokens_tensor
        return [self._input.position_tensor] + ([] if tokens is None else [tokens])

    def _count(self, results: list[Any]) -> str:
        """Count a batch that was dequeued; its position."""
        self.counts = self.counts.consumed(float(results[1]) if results[1:] else None)
        return results[0].decode()
