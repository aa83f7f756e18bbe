"""Whole sequences through recurrent cells: in both directions, their ends, and dropout that is the same over time."""

from __future__ import annotations

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.layers.dropout import dropout
from towernmt.models.recurrent.cell import Cell


def run_both_ways(forwards: Cell, backwards: Cell, x: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """A bidirectional layer (Schuster & Paliwal 1997).

    Args:
        x: float32 `[time, batch, depth]`.
        length: int32 `[batch]`.
    Returns:
        the outputs of both directions, each `[time, batch, cell depth]`; the backward one at position t has read
        the sequence from its end to t.
    """
    rows = tf.shape(x)[1]
    ahead = forwards.run(x, forwards.zero_state(rows))[-1]
    back = backwards.run(reverse(x, length), backwards.zero_state(rows))[-1]
    return ahead, reverse(back, length)


def reverse(x: Tensor, length: Tensor) -> Tensor:
    """Each sequence of `x` `[time, batch, ...]` reversed within its length int32 `[batch]`."""
    return tf.reverse_sequence(x, length, seq_axis=0, batch_axis=1)


def at_end(x: Tensor, length: Tensor) -> Tensor:
    """The last step of each sequence, `[batch, depth]`, of `x` `[time, batch, depth]`; length int32 `[batch]`."""
    return tf.gather_nd(x, tf.stack([length - 1, tf.range(tf.shape(length)[0])], 1))


def sequence_mask(rows: Tensor, depth: int, rate: float, name: str) -> Tensor:
    """Dropout that is the same at every step of a sequence (Gal & Ghahramani 2016): float32 `[rows, depth]`."""
    ones = tf.ones([rows, depth])
    ones.set_shape([None, depth])
    return dropout(ones, rate, name)


def sequence_dropout(x: Tensor, rate: float, name: str) -> Tensor:
    """`x` float32 `[time, batch, depth]` times a `sequence_mask`; itself where nothing is dropped."""
    context = get_current_tower_context()
    if rate == 0.0 or context is None or not context.is_training:
        return x
    return x * sequence_mask(tf.shape(x)[1], int(x.shape[2]), rate, name)
