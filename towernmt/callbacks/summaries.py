"""TensorBoard summaries: texts, pictures, settings, charts, histograms, and the loss scale.

They are `tf.Summary` messages for `trainer.monitors.put_summary`, in the formats of TensorBoard's plugins.
TensorBoard need not be installed. The loss-scale monitor reports updates skipped at a float16 overflow, and changes of
the loss scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Value  # type: ignore[import-untyped]
from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import named_gradients


def text_summary(tag: str, markdown: str) -> Any:
    """Return a summary of a text, which TensorBoard renders as Markdown."""
    return _of_plugin("text", tag, tf.make_tensor_proto([markdown.encode()], tf.string, [1]))


def image_summary(tag: str, png: bytes) -> Any:
    """Return a summary of a PNG picture in colour."""
    width, height = (int.from_bytes(png[offset:offset + 4], "big") for offset in (16, 20))
    image = tf1.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, image=image)])


def settings_table(settings: Mapping[str, Any]) -> str:
    """Return settings by dotted name as a Markdown table."""
    rows = [f"| {name} | {markdown_cell(str(value))} |" for name, value in settings.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def hyper_parameters(settings: Mapping[str, Any], run: Path) -> Any:
    """Return a summary of settings for TensorBoard's HParams.

    Args:
        settings: numbers, booleans and texts by dotted name; other values are shown as text.
        run: the directory of the run, which identifies it.
    """
    # An HParamsPluginData with a SessionStartInfo, whose map `hparams` is field 1 (tensorboard/plugins/hparams).
    entries = b"".join(_field(1, _field(1, name.encode()) + _field(2, _value(value).SerializeToString()))
                       for name, value in settings.items())
    content = _field(3, entries + _field(4, str(run).encode()))
    return _of_plugin("hparams", "_hparams_/session_start_info", tf.make_tensor_proto(0.0, tf.float32, [0]), content)


def charts(curves: Mapping[str, Sequence[str]]) -> Any:
    """Return a summary of charts with several curves each, for TensorBoard's Custom Scalars.

    Args:
        curves: the title of each chart, mapped to regular expressions that match the tags of its scalars.
    """
    # A Layout: categories (2) with title (1) and charts (2) with title (1) and the tags (1) of many lines (2).
    drawn = b"".join(_field(2, _field(1, title.encode()) + _field(2, b"".join(_field(1, tag.encode()) for tag in tags)))
                     for title, tags in curves.items())
    layout = _field(2, _field(1, b"training and validation") + drawn)
    return _of_plugin("custom_scalars", "custom_scalars__config__", tf.make_tensor_proto(layout, tf.string, []))


def _value(value: Any) -> Value:
    if isinstance(value, bool):
        return Value(bool_value=value)
    if isinstance(value, (int, float)):
        return Value(number_value=value)
    return Value(string_value=str(value))


def _field(field: int, content: bytes) -> bytes:
    """Encode a length-delimited protocol buffer field, such as a text or a message."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + content


def markdown_cell(text: str) -> str:
    """Return a text with Markdown escaped, for a cell of a table."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|#" else character for character in text)


def _of_plugin(plugin: str, tag: str, tensor: Any, content: bytes = b"") -> Any:
    metadata = tf1.SummaryMetadata(plugin_data=tf1.SummaryMetadata.PluginData(plugin_name=plugin, content=content))
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])


class Histograms(Callback):
    """Puts a histogram of each trainable variable and of each gradient every `every_steps` updates.

    `parameters/NAME` shows the variable after the update, `gradients/NAME` its gradient before clipping. Values that
    are not finite are left out, because the NaN guard reports them. Other steps compute no histogram.

    Args:
        every_steps: updates between histograms.

    Raises:
        SettingsError: `every_steps` is below 1.
    """

    def __init__(self, every_steps: int) -> None:
        if every_steps < 1:
            raise SettingsError(f"log.histograms={every_steps} must be at least 1; otherwise remove Histograms.")
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


def _merged(kind: str, named_tensors: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Return the histograms of all tensors as one serialized `tf.Summary`, string `[]`."""
    return tf1.summary.merge([tf.raw_ops.HistogramSummary(tag=f"{kind}/{name}", values=_finite(tensor))
                              for name, tensor in named_tensors], collections=[])


def _finite(tensor: Tensor) -> Tensor:
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor)
    return tf.boolean_mask(values, tf.math.is_finite(values))


class LossScaleMonitor(Callback):
    """Warns of each skipped update; does nothing without loss scaling.

    Scalars, recorded when they change: `loss_scale` (of the next step) and `skipped_updates` (since step 0, over
    resumes).
    """

    def _setup_graph(self) -> None:
        self._watched = graph_state().loss_scale
        self._values: Any = None

    def _before_run(self, _: Any) -> list[Tensor]:
        w = self._watched
        return [] if w is None else [w.finite, w.scale, w.skipped, w.next_scale]

    def _after_run(self, _: Any, values: Any) -> None:
        self._values = values.results

    def _trigger_step(self) -> None:
        if not self._values:
            return
        (finite, scale, skipped, next_scale), self._values = self._values, None
        if not finite:
            logger.warning(f"Step {self.global_step}: gradients overflowed in float16 at a loss scale of {scale:g}; "
                           f"the update was skipped ({skipped + 1} so far), and the scale is {next_scale:g} now.")
            self.trainer.monitors.put_scalar("skipped_updates", int(skipped) + 1)
        if scale != next_scale:
            self.trainer.monitors.put_scalar("loss_scale", float(next_scale))
