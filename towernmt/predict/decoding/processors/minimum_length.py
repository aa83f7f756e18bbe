"""A translation that is not too short."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import EOS
from towernmt.predict.decoding.processors.processor import TokenFilter
from towernmt.predict.decoding.step import StepContext


class MinimumLength(TokenFilter):
    """No EOS before a hypothesis has some tokens."""

    at_most = 1

    def __init__(self, tokens: int) -> None:
        """
        Args:
            tokens: how many, EOS not counted.
        """
        self._tokens = tokens

    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        return tf.equal(token, EOS) & (context.step < self._tokens)
