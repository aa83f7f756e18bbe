"""Histograms of parameters and gradients, for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorpack.callbacks import Callback

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradient_health import named_gradients


class Histograms(Callback):
    """Puts a histogram of each trainable variable and of each gradient every `every_steps` updates.

    `parameters/NAME` shows the variable after the update, `gradients/NAME` its gradient before clipping. Values that
    are not finite are left out: the NaN guard reports them. Other steps compute no histogram.
    """

    def __init__(self, every_steps: int) -> None:
        """
        Args:
            every_steps: updates between histograms.
        Raises:
            SettingsError: below 1.
        """
        if every_steps < 1:
            raise SettingsError(f"log.histograms={every_steps} must be at least 1, or leave Histograms out.")
        self._every_steps = every_steps

    def _setup_graph(self) -> None:
        self._gradients = _merged("gradients", named_gradients(self.graph))
        self._parameters = _merged("parameters", [(v.op.name, v) for v in tf1.trainable_variables()])

    def _before_run(self, _: Any) -> Any:
        due = (self.global_step + 1) % self._every_steps == 0
        return tf1.train.SessionRunArgs(self._gradients) if due else None

    def _after_run(self, _: Any, values: Any) -> None:
        if values.results is not None:
            self.trainer.monitors.put_summary(values.results)

    def _trigger_step(self) -> None:
        if self.global_step % self._every_steps == 0:
            self.trainer.monitors.put_summary(self.trainer.sess.run(self._parameters))


def _merged(kind: str, named: Sequence[tuple[str, Tensor]]) -> Tensor:
    """string `[]`: the histograms of all tensors as one serialized `tf.Summary`."""
    return tf1.summary.merge([tf.raw_ops.HistogramSummary(tag=f"{kind}/{name}", values=_finite(tensor))
                              for name, tensor in named], collections=[])


def _finite(tensor: Tensor) -> Tensor:
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor)
    return tf.boolean_mask(values, tf.math.is_finite(values))
