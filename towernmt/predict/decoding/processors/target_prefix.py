"""A translation that begins as it is told: with given tokens, and with a word whose beginning is given.

The first is what Sockeye calls the target prefix, and what translating into several languages by a tag needs. The
second is for interactive translation (Knowles & Koehn 2016), where a user stops typing within a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.decoding.processors.forcing import Forcing
from towernmt.predict.decoding.processors.processor import NEVER
from towernmt.predict.decoding.processors.token_sets import listed
from towernmt.predict.decoding.step import StepContext


class TargetPrefix(Forcing):
    """The first tokens are those of the input `prefix`. They score as the model gives them."""

    def inputs(self) -> Sequence[TensorSpec]:
        """`prefix`: the ids of each sentence, int32 `[batch, length]`, padded with PAD."""
        return [tf.TensorSpec([None, None], tf.int32, "prefix")]

    def forces(self, context: StepContext) -> Tensor:
        return tf.not_equal(self._wanted(context), PAD)

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        wanted = self._wanted(context)[:, None]
        every = tf.range(context.vocabulary_size)[None]
        return tf.where(tf.equal(wanted, PAD) | tf.equal(wanted, every), logits, NEVER)

    def _wanted(self, context: StepContext) -> Tensor:
        """The token that each row must take, int32 `[rows]`; PAD where it may choose."""
        prefix = tf.pad(context.inputs["prefix"], [[0, 0], [0, 1]])
        return context.for_rows(prefix[:, tf.minimum(context.step, tf.shape(prefix)[1] - 1)])


class WordBeginning(Forcing):
    """Behind the prefix comes text that begins with given letters, in whatever tokens the model writes them.

    The input `continuation` says for each number of letters (bytes) written which tokens go on with the text: those
    that write no more than what is left of it, and those that write all of that and more.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        """
        Args:
            lengths: int32 `[vocabulary]`, how many bytes each token writes.
        """
        self._lengths = lengths

    def inputs(self) -> Sequence[TensorSpec]:
        """`continuation`: int32 `[batch, bytes, tokens]`, ids padded with PAD; none are given where any may come.
        `prefix`: see `TargetPrefix`.
        """
        return [tf.TensorSpec([None, None, None], tf.int32, "continuation"),
                tf.TensorSpec([None, None], tf.int32, "prefix")]

    def forces(self, context: StepContext) -> Tensor:
        return tf.reduce_any(tf.not_equal(self._open(context), PAD), axis=1)

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        ids = self._open(context)
        free = tf.reduce_all(tf.equal(ids, PAD), axis=1, keepdims=True)
        return tf.where(free | listed(ids, context.vocabulary_size), logits, NEVER)

    def _open(self, context: StepContext) -> Tensor:
        """The tokens that may come, int32 `[rows, tokens]`; only PAD: any."""
        prefix = tf.math.count_nonzero(context.for_rows(context.inputs["prefix"]), axis=1, dtype=tf.int32)  # [rows]
        behind = tf.range(context.step)[None] >= prefix[:, None]
        lengths = tf.gather(tf.constant(self._lengths, tf.int32), context.tokens)
        written = tf.reduce_sum(tf.where(behind, lengths, 0), axis=1)
        table = tf.pad(context.inputs["continuation"], [[0, 0], [0, 1], [0, 0]])
        place = tf.where(context.step < prefix, tf.shape(table)[1] - 1, tf.minimum(written, tf.shape(table)[1] - 1))
        sentence = tf.range(tf.shape(place)[0]) // context.width
        return tf.gather_nd(table, tf.stack([sentence, place], axis=1))
