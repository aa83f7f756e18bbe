"""The callback of `GeneralQueueInput`, which acts before and after each step that trains on its batches."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol

from tensorpack.callbacks import Callback
from tensorpack.input_source import StagingInput
from tensorpack.tfutils.dependency import dependency_of_fetches
from tensorpack.train.base import StopTraining
from tensorpack.utils import logger

from towernmt.core.runs import Run
from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf1
from towernmt.input_source.feeding import FeederRun, InputStatistics
from towernmt.input_source.staging import Fetched, Staging


class QueueFedInput(Protocol):
    """The part of `GeneralQueueInput` that its callback uses; that class describes the attributes."""

    name: str
    patience: float
    staging: Staging | None
    last_position: str | None
    position_tensor: Tensor
    tokens_tensor: Tensor | None

    @property
    def run(self) -> FeederRun | None: ...

    def start(self, sess: Session) -> None: ...

    def stop(self, sess: Session | None = None) -> None: ...


class InputCallback(Callback):
    """Starts and stops the feeders, and acts before and after each `hooked_sess.run` that trains on the input.

    Before the run, it waits for a batch and measures the time; if no batch will come, it raises the feeders' error, or
    `StopTraining` at the end of the data. After the run, it keeps the position of the batch. With `Staging`, the run
    gets a batch that a separate run has dequeued; the batch counts when it is trained on.

    Attributes:
        data: the input that the callback belongs to.
        counts: statistics so far.
    """

    _chief_only = False
    # Which of these runs take a batch is found by their fetches. Accumulation uses `run_with_batch`.
    belongs_to = (Run.TRAIN_STEP, Run.SAMPLING, Run.VALIDATION, Run.DATA)
    serves_input = True

    def __init__(self, queue_input: QueueFedInput) -> None:
        self._input = self.data = queue_input
        self._tensorpack_staging: Any = None
        self._staged: deque[str] = deque()  # positions of the batches in StagingInput's areas
        self._staged_fetches: Fetched | None = None    # of the batch of the current run, with `Staging`
        self._dequeued = 0                  # batches dequeued by the thread of `Staging`
        self._last_fetches: tuple[Any, bool] = (None, False)
        self._raised = False
        self.counts = InputStatistics()

    def raise_feeder_error(self) -> None:
        """Raise the feeders' error, once, if all batches before it were dequeued."""
        run = self._input.run
        if run and run.error and not self._raised and self.counts.batches >= run.enqueued:
            self._raised = True
            raise run.error

    def run_with_batch(self, sess: Session, op: Operation, feed_dict: Any = None) -> str:
        """Run an operation that consumes one batch outside the hooks, and return the position after the batch."""
        if self._input.staging is not None:
            fetched = self._take_staged(self._input.staging)
            sess.run([self._input.staging.gets, op], feed_dict)
        else:
            self._await_batch()
            fetched, _ = sess.run([self._fetches(), op], feed_dict)
        return self._count(fetched)

    def count_lost_batch(self) -> None:
        """Count a batch that a failed run has dequeued, without a position."""
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
        if self._input.staging is not None:
            self._input.staging.start(self._stage)
        self._input.start(self._session)    # may raise an exception; `_after_train` then stops all of the above

    def _before_run(self, context: Any) -> Any:
        self._staged_fetches = None
        if not self._trains_on_input(context.original_args.fetches):
            return None
        if self._input.staging is not None:
            self._staged_fetches = self._take_staged(self._input.staging)
            return tf1.train.SessionRunArgs(self._input.staging.gets)
        if self._tensorpack_staging is not None and not self._tensorpack_staging._initialized:
            self._fill_staging(context.session)
        self._await_batch()
        return tf1.train.SessionRunArgs(self._fetches())

    def _after_run(self, context: Any, values: Any) -> None:
        if values.results is None:
            return
        self._staged.append(self._count(self._staged_fetches or values.results))
        self._input.last_position = self._staged.popleft()

    def _after_train(self) -> None:
        self._input.stop(self._session)
        if self._input.staging is not None:
            self._input.staging.stop()
        run = self._input.run
        if run and run.error and not self._raised:
            logger.warning("Training ended before it reached an error of the feeders: %s", run.error)

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
        """Fill the areas as StagingInput's callback does before the first step, and keep the positions."""
        for _ in range(self._tensorpack_staging.nr_stage):
            self._await_batch()
            results, _ = sess.run([self._fetches(), self._tensorpack_staging.stage_op])
            self._staged.append(self._count(results))
        self._tensorpack_staging._initialized = True

    def _stage(self) -> Fetched | None:
        """Copy the next batch to the towers' devices, in the thread of `Staging`; None: the data has ended."""
        run, staging = self._input.run, self._input.staging
        if run is None or staging is None or not run.wait_for_item(
                self._dequeued, self._input.patience, self._report_wait):
            return None
        self._dequeued += 1     # even if the copy to a device fails, the batch has left the queue
        fetched, _ = self._session.run([self._fetches(), staging.puts])
        return fetched

    def _take_staged(self, staging: Staging) -> Fetched:
        begin = time.perf_counter()
        fetched = staging.take()
        self.counts = self.counts.waited(time.perf_counter() - begin)
        if fetched is None:
            self.raise_feeder_error()
            raise self._end()
        return fetched

    def _await_batch(self) -> None:
        run = self._input.run
        if run is None:
            return
        begin = time.perf_counter()
        has_batch = run.wait_for_item(self.counts.batches, self._input.patience, self._report_wait)
        self.counts = self.counts.waited(time.perf_counter() - begin)
        if has_batch:
            return
        self.raise_feeder_error()
        if run.finished:
            raise self._end()

    def _report_wait(self, seconds: float) -> None:
        run = self._input.run
        cause = run.awaited() if run else self._input.name
        logger.warning(f"Training has waited {seconds:.0f} s for a batch: {cause}. It keeps waiting; Ctrl-C ends it "
                       "with a checkpoint.")

    def _end(self) -> StopTraining:
        return StopTraining(f"{self._input.name} ended after {self.counts.batches} batches")

    def _fetches(self) -> list[Tensor]:
        tokens = self._input.tokens_tensor
        return [self._input.position_tensor] + ([] if tokens is None else [tokens])

    def _count(self, results: list[Any]) -> str:
        """Count a dequeued batch, and return its position."""
        self.counts = self.counts.consumed(float(results[1]) if results[1:] else None)
        return results[0].decode()
