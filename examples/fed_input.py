"""Batches that a trainer of one's own takes, works on, and feeds to the training towers."""

from __future__ import annotations

from typing import Any

from tensorpack.train.base import StopTraining

from towernmt.core.runs import Run, run_as
from towernmt.core.tensors import Operation, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.input_source.queue_input import global_shape
from towernmt.models.interface import batch_signature


class FedInput(GeneralQueueInput):
    """A `GeneralQueueInput` whose batches do not go to the towers: a trainer takes one and feeds what it made of it.

    The towers' inputs are placeholders of the global batch, and tower i of N gets its share of the rows as ever. The
    position is that of the last batch taken.

    ```
    def train_batch(self, run):
        source, source_length, *_ = self._input.take(self.hooked_sess)
        run(self._input.feed(source, ...))
    ```
    """

    def _setup(self, signature: list[Any]) -> None:
        source = next((spec for spec in signature if spec.name == "source" and spec.shape.rank == 3), None)
        super()._setup(batch_signature(source.shape[2] - 1 if source is not None else 0))
        self._batch = self._global
        with tf.device("/cpu:0"), self.cached_name_scope():
            self._global = [tf1.placeholder(spec.dtype, global_shape(spec), f"fed_{spec.name}") for spec in signature]
        self._signature = signature

    def stage(self) -> None:
        """Nothing: what is fed to a step is made right before it."""

    def run_with_batch(self, sess: Any, op: Operation, feed_dict: Any = None) -> str:
        """Run `op` on what is fed; its batch was taken before. Returns the position after that batch, as JSON."""
        sess.run(op, feed_dict)
        return self.last_position or ""

    def count_lost_batch(self) -> None:
        """Nothing: a batch is counted when it is taken."""

    def take(self, hooked_session: Any) -> list[Any]:
        """The next batch: source, source_length, target, target_length, target_tokens (see `NMTModel`).

        Args:
            hooked_session: the trainer's `hooked_sess`; no callback but the input's own sees this run.
        Raises:
            FeederError: the source is broken.
            StopTraining: the data has ended.
        """
        try:
            with run_as(Run.DATA):
                return list(hooked_session.run(self._batch))
        except tf.errors.OutOfRangeError:
            self.raise_feeder_error()
            raise StopTraining("the data has ended") from None

    def feed(self, *arrays: Any) -> dict[Tensor, Any]:
        """The `feed_dict` of the train step: a global array for each of the towers' inputs, in their order."""
        return dict(zip(self._global, arrays, strict=True))
