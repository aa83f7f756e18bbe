"""Texts, pictures, settings and charts for TensorBoard, as `tf.Summary` for `trainer.monitors.put_summary`.

The formats are those of TensorBoard's plugins; TensorBoard itself is not needed to write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Value  # type: ignore[import-untyped]

from towernmt.core.tf_compat import tf, tf1


def text_summary(tag: str, markdown: str) -> Any:
    """A text, which TensorBoard reads as Markdown."""
    return _of_plugin("text", tag, tf.make_tensor_proto([markdown.encode()], tf.string, [1]))


def image_summary(tag: str, png: bytes) -> Any:
    """A picture in PNG, in colours."""
    width, height = (int.from_bytes(png[place:place + 4], "big") for place in (16, 20))     # of its header
    image = tf1.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, image=image)])


def settings_table(settings: Mapping[str, Any]) -> str:
    """Settings by dotted name as a table in Markdown."""
    rows = [f"| {name} | {markdown_cell(str(value))} |" for name, value in settings.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def hyper_parameters(settings: Mapping[str, Any], run: Path) -> Any:
    """Settings as TensorBoard's HParams shows and compares them.

    Args:
        settings: numbers, booleans and texts by dotted name; other values are shown as texts.
        run: its directory, which identifies the run.
    """
    # An HParamsPluginData with a SessionStartInfo, whose map `hparams` is field 1 (tensorboard/plugins/hparams).
    entries = b"".join(_part(1, _part(1, name.encode()) + _part(2, _value(value).SerializeToString()))
                       for name, value in settings.items())
    content = _part(3, entries + _part(4, str(run).encode()))
    return _of_plugin("hparams", "_hparams_/session_start_info", tf.make_tensor_proto(0.0, tf.float32, [0]), content)


def charts(curves: Mapping[str, Sequence[str]]) -> Any:
    """Charts of several curves each, for TensorBoard's Custom Scalars.

    Args:
        curves: title of a chart to regular expressions on the tags of its scalars.
    """
    # A Layout: categories (2) with title (1) and charts (2) with title (1) and the tags (1) of many lines (2).
    drawn = b"".join(_part(2, _part(1, title.encode()) + _part(2, b"".join(_part(1, tag.encode()) for tag in tags)))
                     for title, tags in curves.items())
    layout = _part(2, _part(1, b"training and validation") + drawn)
    return _of_plugin("custom_scalars", "custom_scalars__config__", tf.make_tensor_proto(layout, tf.string, []))


def _value(value: Any) -> Value:
    if isinstance(value, bool):
        return Value(bool_value=value)
    if isinstance(value, (int, float)):
        return Value(number_value=value)
    return Value(string_value=str(value))


def _part(field: int, content: bytes) -> bytes:
    """A field of a protocol buffer that holds a text, or another message: its tag, its length, its content."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + content


def markdown_cell(text: str) -> str:
    """A text as it is, in a cell of a table in Markdown."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|#" else character for character in text)


def _of_plugin(plugin: str, tag: str, tensor: Any = None, content: bytes = b"") -> Any:
    metadata = tf1.SummaryMetadata(plugin_data=tf1.SummaryMetadata.PluginData(plugin_name=plugin, content=content))
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
