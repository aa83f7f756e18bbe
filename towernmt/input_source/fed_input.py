"""`FedInput`, for trainers that take each batch, work on it in Python, and feed the result to the training towers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorpack.train.base import StopTraining

from towernmt.core.runs import Run, current_run, run_as
from towernmt.core.tensors import Operation, Session, Tensor, TensorSpec
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source.dataflow_batches import DatapointSource
from towernmt.input_source.feed_values import feed_dict
from towernmt.input_source.input_callback import InputCallback
from towernmt.input_source.queue_input import GeneralQueueInput, ReadableBatches, global_shape


class FedInputCallback(InputCallback):
    """The callback of `FedInput`, which sets the input's `last_position` after an update, not when a batch is taken.

    Attributes:
        taken_position: JSON of the position after the last batch that was taken; None before the first.
    """

    taken_position: str | None = None

    def _after_run(self, context: Any, values: Any) -> None:
        if values.results is not None:
            self.taken_position = self._count(values.results)
        elif current_run() is Run.TRAIN_STEP and self.taken_position is not None:
            self._input.last_position = self.taken_position


class FedInput(GeneralQueueInput):
    """A `GeneralQueueInput` whose batches do not go to the towers: the trainer takes a batch and feeds other arrays.

    The inputs of the towers are placeholders of the global batch. Tower i of N gets its share of the rows, as with
    `GeneralQueueInput`. `last_position` is the position after the last batch that was taken before the last update. So
    a run that fails between `take` and the update reads the batch again when it resumes.

        def train_batch(self, run):
            source, source_length, *_ = self._input.take(self.hooked_sess)
            run(self._input.feed(source, ...))

    Args:
        batches: as for `GeneralQueueInput`.
        signature: the tensors of one batch, in order; for the batches of a run, `batch_signature()` of
            `towernmt.models.interface`.
        options: the other arguments of `GeneralQueueInput`.
    """

    def __init__(self, batches: ReadableBatches | DatapointSource, *, signature: Sequence[TensorSpec],
                 **options: Any) -> None:
        super().__init__(batches, **options)
        self._callback: FedInputCallback = FedInputCallback(self)
        self._batch_signature = list(signature)

    def _setup(self, signature: list[TensorSpec]) -> None:
        super()._setup(self._batch_signature)
        self._batch = self._global
        with tf.device("/cpu:0"), self.cached_name_scope():
            self._global = [tf1.placeholder(spec.dtype, global_shape(spec), f"fed_{spec.name}") for spec in signature]
        self._signature = signature

    def stage(self) -> None:
        """Do nothing: the arrays of a step are fed right before it, so they cannot be staged."""

    def run_with_batch(self, sess: Session, op: Operation, feed_dict: Any = None) -> str:
        """Run `op` on fed arrays, whose batch was taken before, and return the position after that batch as JSON."""
        sess.run(op, feed_dict)
        return self._callback.taken_position or ""

    def count_lost_batch(self) -> None:
        """Do nothing: a batch is counted when it is taken."""

    def take(self, hooked_session: Session) -> list[Any]:
        """Take the next batch from the queue.

        Args:
            hooked_session: the trainer's `hooked_sess`; of all callbacks, only the input's own sees this run.

        Returns:
            One array for each tensor of `signature`.

        Raises:
            FeederError: the source of the batches failed.
            StopTraining: the data has ended.
        """
        try:
            with run_as(Run.DATA):
                return list(hooked_session.run(self._batch))
        except tf.errors.OutOfRangeError:
            self.raise_feeder_error()
            raise StopTraining("the data has ended") from None

    def feed(self, *arrays: Any) -> dict[Tensor, Any]:
        """Return the `feed_dict` of the train step, from one global array for each input of the towers, in order.

        Raises:
            FeederError: an array is missing, or does not fit its input. `Session.run` would silently truncate numbers.
        """
        return feed_dict(self._global, list(arrays), [spec.name for spec in self._signature])
