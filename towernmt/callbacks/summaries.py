"""What TensorBoard shows beside scalars, as `tf.Summary` for `trainer.monitors.put_summary`.

The formats are those of TensorBoard's plugins; TensorBoard itself is not needed to write them.
"""

from __future__ import annotations

from typing import Any

from towernmt.tf_compat import tf, tf1


def text_summary(tag: str, markdown: str) -> Any:
    """A text, which TensorBoard reads as Markdown."""
    return _of_plugin("text", tag, tf.make_tensor_proto([markdown.encode()], tf.string, [1]))


def _of_plugin(plugin: str, tag: str, tensor: Any = None, content: bytes = b"") -> Any:
    metadata = tf1.SummaryMetadata(plugin_data=tf1.SummaryMetadata.PluginData(plugin_name=plugin, content=content))
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
