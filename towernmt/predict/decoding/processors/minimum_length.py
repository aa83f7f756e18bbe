"""A translation that is not too short."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS
from towernmt.predict.decoding.processors.processor import TokenFilter
from towernmt.predict.decoding.step import StepContext


class MinimumLength(TokenFilter):
    """No EOS before a hypothesis has some tokens: so many, and so many for each token of the source."""

    at_most = 1

    def __init__(self, tokens: int, factor: float = 0.0) -> None:
        """
        Args:
            tokens: how many, EOS not counted.
            factor: source tokens * factor, rounded down; EOS is counted on neither side.
        """
        self._tokens, self._factor = tokens, factor

    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        return tf.equal(token, EOS) & self._is_short(context)

    def _is_short(self, context: StepContext) -> Tensor:
        """bool `[]`, or `[rows, 1]` where it depends on the source."""
        if not self._factor:
            return context.step < self._tokens
        words = tf.cast(context.for_rows(context.inputs["source_length"]) - 1, tf.float32)
        least = tf.cast(tf.floor(words * self._factor), tf.int32)
        return (context.step < tf.maximum(least, self._tokens))[:, None]
