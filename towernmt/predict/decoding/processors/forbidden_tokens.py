"""Tokens that never come."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import TokenFilter
from towernmt.predict.decoding.step import StepContext


class ForbiddenTokens(TokenFilter):
    """Tokens that never come."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """
        Args:
            tokens: their ids.
        """
        self._tokens = list(tokens)
        self.at_most = len(self._tokens)

    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        return tf.reduce_any(tf.equal(token[:, :, None], tf.constant(self._tokens, tf.int32)), axis=2)
