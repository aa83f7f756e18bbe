"""No n-gram twice in a translation."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import NEVER, LogitsProcessor
from towernmt.predict.decoding.step import StepContext


class NoRepeatedNgrams(LogitsProcessor):
    """Forbids the tokens that would end an n-gram which the hypothesis has already (Paulus et al. 2018)."""

    def __init__(self, size: int) -> None:
        """
        Args:
            size: n, 1 or more.
        """
        self._size = size

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        tokens, n = context.tokens, self._size                      # [rows, step]
        count = tf.maximum(context.step - n + 1, 0)                 # n-grams so far
        # The n-gram at place i would come again if its first n - 1 tokens are the last n - 1 of the hypothesis.
        same = tf.ones([tf.shape(tokens)[0], count], tf.bool)
        for k in range(n - 1):
            last = context.step - n + 1 + k
            same &= tf.equal(tokens[:, k:k + count], tokens[:, last:last + 1])
        ends = tokens[:, n - 1:n - 1 + count]                       # [rows, count], the last token of each
        row = tf.broadcast_to(tf.range(tf.shape(ends)[0])[:, None], tf.shape(ends))
        comes_again = tf.scatter_nd(tf.stack([row, ends], axis=2), tf.cast(same, tf.int32), tf.shape(logits)) > 0
        return tf.where(comes_again, NEVER, logits)
