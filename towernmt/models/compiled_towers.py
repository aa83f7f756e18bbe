"""Training towers that XLA compiles (`train.xla`), for a small number of padded shapes.

XLA compiles the forward pass of a tower, and TensorFlow derives a backward pass from it that XLA compiles, too. It
compiles them again for each shape of a batch, which takes seconds to minutes. So batches are padded to the sizes of
`padded_size`, source and target to the same length, and the loss masks the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1

SIZES = (1, *(size for power in range(1, 20) for size in (2 ** power, 3 * 2 ** (power - 1))))
"""Lengths and numbers of rows of compiled towers: powers of two, and half of the way to the next one."""
LEAST_LENGTH = 8
"""Shorter sentences are padded to this length."""


def is_compiled(is_training: bool) -> bool:
    """Return whether XLA compiles a tower of the default graph.

    Args:
        is_training: whether the tower trains.
    """
    return is_training and graph_state().settings.xla


def check_compilation(model: Any) -> None:
    """Refuse `train.xla` in the default graph for a model that XLA cannot compile, or whose loss cannot mask padding.

    Raises:
        SettingsError: the model or one of its settings does not work with XLA.
    """
    settings = getattr(model, "settings", None)
    for is_unsupported, name in (
            (not model.compiles, type(model).__name__),
            (getattr(settings, "decoder_cell", "") == "ssru", "model.decoder_cell=ssru"),
            (model.overrides_loss, f"the loss of {type(model).__name__}"),
            (model.dropout_divergence > 0.0, "model.r_drop_alpha"),
            (model.softmax_sample > 0.0, "model.softmax_sample"),
            (model.guided_alignment_weight > 0.0, "model.guided_alignment_weight"),
            (graph_state().settings.gradient_checkpointing, "train.gradient_checkpointing=true")):
        if is_unsupported:
            raise SettingsError(f"train.xla=true does not work with {name}: XLA compiles a Transformer with attention "
                                "or a ConvS2S that trains by cross-entropy. Set train.xla=false.")


def compiled(tower: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
    """Return `tower(*inputs)`, compiled by XLA together with its gradient.

    Variables are created in the default graph, under the same names as without XLA.

    Args:
        tower: function from the inputs to a tensor or a tuple of tensors.
        inputs: the inputs.
    """
    graph = tf1.get_default_graph()

    def in_graph(getter: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with graph.as_default(), tf1.name_scope(None):      # which `get_variable` has left in the function's graph only
            return getter(*arguments, **options)

    def body(*tensors: Tensor) -> Any:
        with tf1.variable_scope(tf1.get_variable_scope(), custom_getter=in_graph):
            return tower(*tensors)

    return tf.function(body, jit_compile=True, autograph=False)(*inputs)


def padded_batch(source: Tensor, source_length: Tensor, target: Tensor, target_length: Tensor) -> list[Tensor]:
    """Return a batch whose number of rows and common length are in `SIZES`.

    Args:
        source: int32 `[batch, source length]`, or `[batch, source length, 1 + factors]`.
        source_length: int32 `[batch]`.
        target: int32 `[batch, target length]`.
        target_length: int32 `[batch]`.

    Returns:
        The same tensors with zeros at the end of their first two dimensions; additional rows have the length 0.
    """
    rows = padded_size(tf.shape(target)[0])
    length = padded_size(tf.maximum(tf.maximum(tf.shape(source)[1], tf.shape(target)[1]), LEAST_LENGTH))

    def longer(x: Tensor) -> Tensor:
        missing = tf.stack([rows, length][:x.shape.rank]) - tf.shape(x)[:2]
        return tf.pad(x, tf.pad(missing[:, None], [[0, max(0, x.shape.rank - 2)], [1, 0]]))

    return [longer(x) for x in (source, source_length, target, target_length)]


def padded_size(size: Tensor) -> Tensor:
    """Return the smallest of `SIZES` that is at least `size`, int32 `[]`."""
    sizes = tf.constant(SIZES)
    return tf.reduce_min(tf.where(sizes >= size, sizes, SIZES[-1]))
