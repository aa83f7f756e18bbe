"""`GeneralQueueInput`: from batches to the towers, by way of a queue that feeder threads fill.

One element of the queue is one global batch with the position after it. It is dequeued once per
training step, and each tower gets its share of the rows. The position comes out with the step that
trains on the batch, so that a checkpoint never points past what was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tensorpack.dataflow import DataFlow
from tensorpack.input_source import FeedfreeInput
from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.shared_batch import TOKENS, share_batch
from towernmt.core.tensors import Operation, Session, Tensor, TensorSpec
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.order.position import Position
from towernmt.input_source.dataflow_batches import DataFlowBatches, DataPoints
from towernmt.input_source.feeding import FeederRun
from towernmt.input_source.input_callback import InputCallback
from towernmt.input_source.input_statistics import InputStatistics
from towernmt.input_source.queue_runner import GeneralQueueRunner
from towernmt.input_source.staging import Staging


class ReadableBatches(Protocol):
    """Batches in a fixed order; reader i of N gets every N-th one, beginning with the i-th."""

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Iterator[tuple[Any, Any]]:
        """Yield (position after the batch, batch).

        A position has `to_json()`, and a batch `arrays()`: one for each input of the tower, in the order of its
        signature.
        """
        ...

    def batches_per_epoch(self) -> int: ...


class GeneralQueueInput(FeedfreeInput):
    """A tensorpack `InputSource` for any trainer, with any number of towers.

    * Tower i of N gets the rows `[i*B//N, (i+1)*B//N)` of every tensor that has a batch dimension, that is
      of every one that is not a scalar in the signature; scalars go to all towers whole. Padding columns
      stay. With fewer rows than towers some shares have no row.
    * The end of the batches ends training normally (`StopTraining`). A feeder's error stops training: the
      step that would have used what could not be read raises it, after all steps before it (see
      `InputCallback`).
    * Each training step must evaluate what the input feeds in one `hooked_sess.run`.
    * Under tensorpack's `StagingInput` the position keeps step with what is trained on; when the batches
      end, those still staged (one, by default) are not trained on, nor does `last_position` pass them.

    Args:
        batches: see `ReadableBatches`, for example `towernmt.dataflow.Batches`; or a tensorpack DataFlow, each
            datapoint of which is a global batch (see `DataFlowBatches`).
        feeders: feeder threads, one or more. Their number does not change the order. A DataFlow has one.
        capacity: elements (global batches) that the queue holds at most.
        position: where to begin; a position, or its JSON. None: at the beginning.
        parse_position: makes a position from its JSON; None: as `towernmt.dataflow`, or a DataFlow, has it.
        name: of the source, in errors and logs.
        patience: seconds that training waits for a batch until the log says for whom; it goes on waiting.

    Attributes:
        last_position: JSON of the position after the last batch that a training step consumed; before the
            first one, the position to begin at (None for the beginning).
        runner: the `GeneralQueueRunner`; None before `setup`.
        staging: where the next batch waits on the towers' devices; None where it does not.

    Raises:
        SettingsError: a number is too small, or `batches` cannot be read.
    """

    def __init__(self, batches: ReadableBatches | DataFlow, feeders: int = 2, capacity: int = 32,
                 position: Any = None, parse_position: Callable[[str], Any] | None = None,
                 name: str = "the training data", patience: float = 60.0) -> None:
        if feeders < 1 or capacity < 1:
            raise SettingsError("An input queue needs at least one feeder and room for one batch; given were "
                                f"{feeders} feeders and a capacity of {capacity}.")
        if isinstance(batches, DataFlow):
            batches, feeders, parse_position = DataFlowBatches(batches), 1, parse_position or DataPoints.from_json
        if not callable(getattr(batches, "read", None)):
            raise SettingsError(f"GeneralQueueInput({batches!r}): give it batches that can be read from a position, "
                                "such as towernmt.dataflow.Batches, or a tensorpack DataFlow.")
        self.batches = batches
        self.feeders = feeders
        self.capacity = capacity
        self.name, self.patience = name, patience
        self.runner: GeneralQueueRunner | None = None
        self.last_position: str | None = None
        self.staging: Staging | None = None
        self._parse_position = parse_position or Position.from_json
        self._position: Any = None
        self._started = False
        self._session: Any = None
        self._callback = InputCallback(self)
        if position is not None:
            self.start_from(position if isinstance(position, str) else position.to_json())

    def start_from(self, position: str) -> None:
        """Begin at this position (JSON, as `last_position`); to be called before training starts.

        That nothing is left after it is then a normal end of the data, not an empty source.
        """
        if self._started:
            raise SettingsError("The input's feeders are running already: "
                                "set its position before training starts.")
        self._position = self._parse_position(position)
        self.last_position = position

    def stage(self) -> None:
        """Copy each batch to the towers' devices while the one before is trained on (see `Staging`).

        To be called before the towers are built, by the trainer.
        """
        self.staging = Staging()

    def start(self, sess: Session) -> None:
        """Start the feeders in a session (the input's callback does it before training)."""
        if self.runner is None:
            raise SettingsError("The input was not set up: give it to a trainer, or call setup(signature).")
        logger.info("Feeding %s with %d thread(s) from %s.", self.name, self.feeders,
                    self.last_position or "the beginning", extra=DETAIL)
        self._started, self._session = True, sess
        self._readers = [self.batches.read(self._position, index, self.feeders)
                         for index in range(self.feeders)]
        self.runner.allow_empty = self._position is not None
        self.runner.create_threads(sess, daemon=True, start=True)

    def stop(self, sess: Session | None = None) -> None:
        """Stop the feeders; see `GeneralQueueRunner.stop`.

        Args:
            sess: the session; None for that of `start`.
        """
        sess = sess or self._session
        if self.runner is not None and sess is not None:
            self.runner.stop(sess)

    def raise_feeder_error(self) -> None:
        """Raise the feeders' error if there is one that training has come to: what a trainer's `run_step`
        calls at an `OutOfRangeError`, so that a broken source is no normal end."""
        self._callback.raise_feeder_error()

    @property
    def exhausted(self) -> bool:
        """Whether training has come to the true end of the batches, and not to where the feeders were stopped."""
        run = self.run
        return run is not None and run.finished and not run.stopping and self._callback.counts.batches >= run.enqueued

    def run_with_batch(self, sess: Session, op: Operation, feed_dict: Any = None) -> str:
        """Run `op`, which consumes one batch, outside a training step's hooks (update cycles do).

        `last_position` stays: what was consumed counts only once an update was made from it.

        Args:
            sess: the session.
            op: what to run.
            feed_dict: what else the run is fed; None for nothing.
        Returns:
            the position after that batch, as JSON.
        Raises:
            FeederError, StopTraining: as before a training step.
        """
        return self._callback.run_with_batch(sess, op, feed_dict)

    def count_lost_batch(self) -> None:
        """A run that took a batch failed and is not made again: `last_position` passes that batch with the next one."""
        self._callback.count_lost_batch()

    def statistics(self) -> InputStatistics:
        """What went through so far, a snapshot (see `InputStatistics`)."""
        return self._callback.counts.snapshot(self.run)

    @property
    def run(self) -> FeederRun | None:
        """The state of the feeders; None before they started."""
        return self.runner.run if self.runner else None

    def estimated_size(self) -> int:
        """How many batches an epoch has, about: without reading the corpus, where `batches` can tell.

        Raises:
            NotImplementedError: it is not known, as of a stream.
        """
        estimate = getattr(self.batches, "estimated_batches_per_epoch", self._size)
        return int(estimate())

    def _size(self) -> int:
        return self.batches.batches_per_epoch()

    def _setup(self, signature: list[TensorSpec]) -> None:
        self._signature = signature
        with tf.device("/cpu:0"), self.cached_name_scope():
            placeholders = [tf1.placeholder(spec.dtype, global_shape(spec), name=f"feed_{spec.name}")
                            for spec in signature]
            placeholders.append(tf1.placeholder(tf.string, [], name="feed_position"))
            self.queue = tf1.FIFOQueue(self.capacity, [p.dtype for p in placeholders], name="queue")
            enqueue = self.queue.enqueue(placeholders, name="enqueue")
            *self._global, self.position_tensor = self.queue.dequeue(name="dequeue")
            for tensor, placeholder in zip(self._global, placeholders, strict=False):
                tensor.set_shape(placeholder.shape)
            self.position_tensor.set_shape([])
            self.tokens_tensor = next((tensor for tensor, spec in zip(self._global, signature, strict=True)
                                       if spec.name == TOKENS), None)
            each = range(self.feeders)
            self.runner = GeneralQueueRunner(
                self.queue, [enqueue for _ in each], [self._feed_fn(index) for index in each],
                [placeholders for _ in each], in_order=True,
                names=[f"{self.name} (feeder {index + 1} of {self.feeders})" for index in each])

    def _feed_fn(self, index: int) -> Callable[[], list[Any]]:
        def feed() -> list[Any]:
            position, batch = next(self._readers[index])
            return [*batch.arrays(), position.to_json()]

        return feed

    def _get_callbacks(self) -> list[Any]:
        return [self._callback]

    def _get_input_tensors(self) -> list[Tensor]:
        context = get_current_tower_context()
        trains = context is not None and context.is_training
        index, total = (context.index, context.total) if trains else (0, 1)
        share_batch()
        # in the name scope of the queue: what is fed is no part of a tower
        with tf1.name_scope(None), self.cached_name_scope(), tf1.name_scope(f"share_{index}"):
            with tf.device("/cpu:0"):
                share = self._share(index, total)
            return self.staging.through(share) if self.staging is not None and trains else share

    def _share(self, index: int, total: int) -> list[Tensor]:
        """The tensors of tower `index` of `total`: `[batch, ...]` -> `[share, ...]`, scalars as they are."""
        shares = []
        for tensor, spec in zip(self._global, self._signature, strict=True):
            share = tensor
            if total > 1 and tensor.shape.rank:
                rows = tf.shape(tensor)[0]
                share = tensor[rows * index // total:rows * (index + 1) // total]
            share = tf.identity(share, name=spec.name)
            share.set_shape(spec.shape)
            shares.append(share)
        return shares


def global_shape(spec: TensorSpec) -> Any:
    """The signature's shape with the batch dimension open: `[batch, ...]` of the global batch."""
    shape = tf.TensorShape(spec.shape)
    if shape.rank is None:
        raise SettingsError(f"The input '{spec.name}' needs a shape of known rank, "
                            "with None for what varies.")
    return tf.TensorShape([None, *shape.as_list()[1:]]) if shape.rank else shape
