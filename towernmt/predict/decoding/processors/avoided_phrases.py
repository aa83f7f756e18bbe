"""Phrases that never come, another list for each sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import BOS, PAD
from towernmt.predict.decoding.processors.processor import NEVER, LogitsProcessor
from towernmt.predict.decoding.processors.token_sets import listed
from towernmt.predict.decoding.step import StepContext

WORD_BREAK = -1
"""In a phrase, in place of its first token: any token behind which a word may begin, or the beginning."""
_NOTHING = -2


class AvoidedPhrases(LogitsProcessor):
    """The last token of a phrase is forbidden where the others stand before it (Sockeye's "avoid")."""

    def __init__(self, breaks: np.ndarray) -> None:
        """
        Args:
            breaks: bool `[vocabulary]`, whether a token counts as `WORD_BREAK`; the beginning is BOS.
        """
        self._breaks = breaks

    def inputs(self) -> Sequence[TensorSpec]:
        """`avoid`: the phrases of each sentence, int32 `[batch, phrases, length]`, padded with PAD behind. A phrase may
        begin with BOS, and then counts at the beginning only, or with `WORD_BREAK`; it may end with EOS.
        """
        return [tf.TensorSpec([None, None, None], tf.int32, "avoid")]

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        backwards = _backwards(context.inputs["avoid"])         # [batch, phrases, length], the last token first
        stands = self._stand(backwards[:, None, :, 1:], context)
        ends = tf.where(stands, backwards[:, None, :, 0], PAD)  # [batch, width, phrases]
        ends = tf.reshape(ends, [-1, tf.shape(ends)[2]])
        return tf.where(listed(ends, context.vocabulary_size), NEVER, logits)

    def _stand(self, phrases: Tensor, context: StepContext) -> Tensor:
        """Whether all tokens of a phrase but its last are the last ones of a hypothesis.

        Args:
            phrases: int32 `[batch, 1, phrases, n]`, backwards.
        Returns:
            bool `[batch, width, phrases]`.
        """
        count = tf.shape(phrases)[3]
        tokens = tf.pad(context.history.tokens, [[0, 0], [0, 0], [1, 0]], constant_values=BOS)
        tokens = tf.pad(tokens, [[0, 0], [0, 0], [count, 0]], constant_values=_NOTHING)
        recent = tf.reverse(tokens[:, :, -count:], [2])         # [batch, width, n]
        breaks = (recent >= 0) & tf.gather(tf.constant(self._breaks), tf.maximum(recent, 0))
        recent, breaks = recent[:, :, None], breaks[:, :, None]
        return tf.reduce_all(tf.equal(phrases, PAD) | tf.equal(phrases, recent)
                             | (tf.equal(phrases, WORD_BREAK) & breaks), axis=3)


def _backwards(phrases: Tensor) -> Tensor:
    """Each phrase from its last token to its first, then PAD; one column more than there were."""
    phrases = tf.pad(phrases, [[0, 0], [0, 0], [0, 1]])
    rows = tf.reshape(phrases, [-1, tf.shape(phrases)[2]])
    lengths = tf.math.count_nonzero(rows, axis=1, dtype=tf.int32)
    return tf.reshape(tf.reverse_sequence(rows, lengths, seq_axis=1), tf.shape(phrases))
