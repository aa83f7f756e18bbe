"""`GeneralQueueInput`, the `InputSource` whose queue is filled by feeder threads, and its monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from tensorpack.callbacks import Callback
from tensorpack.input_source import FeedfreeInput, InputSource
from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import TOKENS, share_batch
from towernmt.core.tensors import Operation, Session, Tensor, TensorSpec
from towernmt.core.terminal_log import DETAIL
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source.dataflow_batches import DataFlowBatches, DataPoints, DatapointSource
from towernmt.input_source.feed_values import in_order
from towernmt.input_source.feeding import FeederRun, InputStatistics
from towernmt.input_source.input_callback import InputCallback
from towernmt.input_source.queue_runner import GeneralQueueRunner
from towernmt.input_source.staging import Staging


class ReadableBatches(Protocol):
    """Batches in a fixed order; reader i of N gets every N-th batch, from the i-th."""

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Iterator[tuple[Any, Any]]:
        """Yield (position after the batch, batch).

        A position has `to_json()`. A batch has `arrays()`: a list with one array per input of the tower, in the order
        of its signature, or a dict by the names of the inputs.
        """
        ...

    def batches_per_epoch(self) -> int: ...


class GeneralQueueInput(FeedfreeInput):
    """A tensorpack `InputSource` for any trainer, with any number of towers.

    * Tower i of N gets the rows `[i*B//N, (i+1)*B//N)` of every tensor with a batch dimension, that is, every tensor
      that is not a scalar in the signature. All towers get the scalars. Padding columns stay. With fewer rows than
      towers, some shares are empty.
    * The end of the batches ends training normally (`StopTraining`). A feeder's error is raised by the step that needs
      the missing batch, after all steps before it (see `InputCallback`).
    * Each training step must evaluate the input in one `hooked_sess.run`.
    * With tensorpack's `StagingInput`, the position is that of the batch trained on. At the end of the batches, those
      still staged (one, by default) are not trained on, and `last_position` stays before them.

    Args:
        batches: `ReadableBatches` such as `towernmt.dataflow.Batches`; or a tensorpack DataFlow, an iterable, a
            generator or a generator function, whose datapoints are global batches (see `DataFlowBatches`).
        feeders: number of feeder threads, which does not change the order. A DataFlow has one.
        capacity: maximum number of elements (global batches) in the queue.
        position: the position to start at, or its JSON. None: the beginning.
        parse_position: makes a position from its JSON; None: the positions of `towernmt.dataflow` or of a DataFlow.
        name: name of the source in errors and logs.
        patience: seconds that training waits for a batch until the log names the feeder that it waits for.

    Attributes:
        last_position: JSON of the position after the last batch that a training step consumed; before the first step,
            the position to start at (None for the beginning).
        runner: the `GeneralQueueRunner`; None before `setup`.
        staging: the areas of the next batch on the towers' devices; None without staging.

    Raises:
        SettingsError: `feeders` or `capacity` is below 1, or `batches` has another type.
    """

    _global: list[Tensor]
    position_tensor: Tensor

    def __init__(self, batches: ReadableBatches | DatapointSource, feeders: int = 2, capacity: int = 32,
                 position: Any = None, parse_position: Callable[[str], Any] | None = None,
                 name: str = "the training data", patience: float = 60.0) -> None:
        if feeders < 1 or capacity < 1:
            raise SettingsError(f"GeneralQueueInput(feeders={feeders}, capacity={capacity}): both must be at least 1.")
        if not callable(getattr(batches, "read", None)):
            batches = DataFlowBatches(cast(DatapointSource, batches))
            feeders, parse_position = 1, parse_position or DataPoints.from_json
        self.batches = cast(ReadableBatches, batches)
        self.feeders = feeders
        self.capacity = capacity
        self.name, self.patience = name, patience
        self.runner: GeneralQueueRunner | None = None
        self._last_position: str | None = None
        self.staging: Staging | None = None
        self._parse_position = parse_position or Position.from_json
        self._position: Any = None
        self._started = False
        self._session: Any = None
        self._callback = InputCallback(self)
        if position is not None:
            self.start_from(position if isinstance(position, str) else position.to_json())

    def start_from(self, position: str) -> None:
        """Start at this position (JSON, as `last_position`); call it before training starts.

        If no batch comes after the position, that is a normal end of the data, not an empty source.
        """
        if self._started:
            raise SettingsError("The input's feeders are already running: set the position before training starts.")
        self._position = self._parse_position(position)
        self.last_position = position

    @property
    def position_settings(self) -> dict[str, Any]:
        """The settings that a position depends on, by name; empty if the batches do not declare them."""
        return dict(getattr(self.batches, "position_settings", {}))

    def stage(self) -> None:
        """Copy each batch to the towers' devices during the step before (see `Staging`).

        The trainer calls it before the towers are built.
        """
        self.staging = Staging()

    def start(self, sess: Session) -> None:
        """Start the feeders in a session; the input's callback calls it before training."""
        if self.runner is None:
            raise SettingsError("The input was not set up: pass it to a trainer, or call setup(signature).")
        logger.info("Feeding %s with %d thread(s) from %s.", self.name, self.feeders,
                    self.last_position or "the beginning", extra=DETAIL)
        self._started, self._session = True, sess
        self._readers = [self.batches.read(self._position, index, self.feeders) for index in range(self.feeders)]
        self.runner.allow_empty = self._position is not None
        self.runner.create_threads(sess, daemon=True, start=True)

    def stop(self, sess: Session | None = None) -> None:
        """Stop the feeders; see `GeneralQueueRunner.stop`.

        Args:
            sess: the session; None: the session of `start`.
        """
        sess = sess or self._session
        if self.runner is not None and sess is not None:
            self.runner.stop(sess)

    def raise_feeder_error(self) -> None:
        """Raise the feeders' error if training has reached it.

        A trainer's `run_step` calls it at an `OutOfRangeError`, to distinguish a broken source from a normal end.
        """
        self._callback.raise_feeder_error()

    @property
    def last_position(self) -> str | None:
        """See the class. It contains weights of a mixture that were set later (`Mixture.set_weights`)."""
        saved = getattr(self.batches, "saved_position", None)
        return self._last_position if saved is None or self._last_position is None else saved(self._last_position)

    @last_position.setter
    def last_position(self, position: str | None) -> None:
        self._last_position = position

    @property
    def exhausted(self) -> bool:
        """Whether training has reached the end of the batches, not only the point where the feeders were stopped."""
        run = self.run
        return run is not None and run.finished and not run.stopping and self._callback.counts.batches >= run.enqueued

    def run_with_batch(self, sess: Session, op: Operation, feed_dict: Any = None) -> str:
        """Run an operation that consumes one batch outside the hooks of a training step, for update cycles.

        `last_position` does not change: a batch counts only after an update from it.

        Args:
            sess: the session.
            op: the operation to run.
            feed_dict: further feeds of the run, or None.

        Returns:
            the position after that batch, as JSON.

        Raises:
            FeederError, StopTraining: as before a training step.
        """
        return self._callback.run_with_batch(sess, op, feed_dict)

    def count_lost_batch(self) -> None:
        """Count the batch of a failed run that is not repeated; `last_position` passes it with the next batch."""
        self._callback.count_lost_batch()

    def statistics(self) -> InputStatistics:
        """Return the current statistics."""
        return self._callback.counts.snapshot(self.run)

    @property
    def run(self) -> FeederRun | None:
        """The state of the feeders; None before their start."""
        return self.runner.run if self.runner else None

    def estimated_size(self) -> int:
        """Return the estimated number of batches in an epoch, if possible without reading the corpus.

        Raises:
            NotImplementedError: the number is not known, as of a stream.
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
            tensors = self.queue.dequeue(name="dequeue")
            self._global, self.position_tensor = tensors[:-1], tensors[-1]
            for tensor, placeholder in zip(self._global, placeholders, strict=False):
                tensor.set_shape(placeholder.shape)
            self.position_tensor.set_shape([])
            self.tokens_tensor = next((tensor for tensor, spec in zip(self._global, signature, strict=True)
                                       if spec.name == TOKENS), None)
            feeders = range(self.feeders)
            self.runner = GeneralQueueRunner(
                self.queue, [enqueue for _ in feeders], feed_fns=[self._feed_fn(index) for index in feeders],
                feed_tensors=[placeholders for _ in feeders], in_order=True,
                feed_names=[*(spec.name for spec in signature), "position"],
                names=[f"{self.name} (feeder {index + 1} of {self.feeders})" for index in feeders])

    def _feed_fn(self, index: int) -> Callable[[], list[Any]]:
        names = [spec.name for spec in self._signature]

        def feed() -> list[Any]:
            position, batch = next(self._readers[index])
            return [*in_order(batch.arrays(), names), position.to_json()]

        return feed

    def _get_callbacks(self) -> list[Any]:
        return [self._callback]

    def _get_input_tensors(self) -> list[Tensor]:
        context = get_current_tower_context()
        trains = context is not None and context.is_training
        index, total = (context.index, context.total) if trains else (0, 1)
        share_batch()
        # The feeds are in the name scope of the queue, because they are not part of a tower.
        with tf1.name_scope(None), self.cached_name_scope(), tf1.name_scope(f"share_{index}"):
            with tf.device("/cpu:0"):
                share = self._share(index, total)
            return self.staging.through(share) if self.staging is not None and trains else share

    def _share(self, index: int, total: int) -> list[Tensor]:
        """Return the tensors of tower `index` of `total`: `[batch, ...]` -> `[share, ...]`, scalars unchanged."""
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


def innermost(data: Any) -> Any:
    """Return the `InputSource` inside the wrappers of tensorpack (`StagingInput`, `remap_input_source`), or `data`."""
    while isinstance(data, InputSource) and isinstance(getattr(data, "_input", None), InputSource):
        data = data._input
    return data


def global_shape(spec: TensorSpec) -> Any:
    """Return the shape of an input in the global batch: that of the signature, with any batch size."""
    shape = tf.TensorShape(spec.shape)
    if shape.rank is None:
        raise SettingsError(f"The input '{spec.name}' has no shape: set one of known rank, with None for dimensions "
                            "that vary.")
    return tf.TensorShape([None, *shape.as_list()[1:]]) if shape.rank else shape


class QueueMonitor(Callback):
    """Records scalars of the input every `every_steps` updates.

    The scalars are `input/queue_depth` (global batches in the queue), and, since the last record, `input/wait_share`
    (share of the time that training waited for data, 0 to 1) and `input/target_tokens_per_second` (if the towers have
    an input `target_tokens`). Register it with the trainer, which never triggers the callbacks of an `InputSource`.

    Args:
        queue_input: the input of the trainer.
        every_steps: interval in updates; 0: at each trigger, by default the end of each epoch.
    """

    def __init__(self, queue_input: GeneralQueueInput, every_steps: int = 0) -> None:
        self._input, self._every_steps = queue_input, every_steps

    def _before_train(self) -> None:
        self._last_statistics = self._input.statistics()

    def _trigger_step(self) -> None:
        if self._every_steps and self.global_step % self._every_steps == 0:
            self._put()

    def _trigger(self) -> None:
        if not self._every_steps:
            self._put()

    def _put(self) -> None:
        statistics = self._input.statistics()
        interval, self._last_statistics = statistics - self._last_statistics, statistics
        monitors = self.trainer.monitors
        monitors.put_scalar("input/queue_depth", statistics.queue_depth)
        monitors.put_scalar("input/wait_share", interval.wait_share)
        if interval.target_tokens_per_second is not None:
            monitors.put_scalar("input/target_tokens_per_second", interval.target_tokens_per_second)
