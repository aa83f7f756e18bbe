"""Processors of logits: what the next token of a hypothesis may be.

A chain of them stands between the model and the strategy. One of your own is a class of its own, passed to
`search_tower`, `build_search_predictor` or `Translator`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.step import StepContext

NEVER = float("-inf")
"""The logit of a token that may not come, the log-probability of what cannot be, and the score of an empty place."""


class LogitsProcessor(ABC):
    """Changes the logits that a strategy chooses from.

    What the model says of a token that is left keeps its value: nothing is normalised again, so a forbidden token keeps
    its share of the probability.
    """

    def inputs(self) -> Sequence[TensorSpec]:
        """The tensors that it reads from `context.inputs`: a `tf.TensorSpec` with a name each. By default none."""
        return ()

    @abstractmethod
    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        """The logits that count.

        Args:
            logits: float32 `[batch * width, vocabulary]`. Adding a number to a whole row changes nothing.
            context: the hypotheses so far, and the inputs.
        Returns:
            the same shape; `NEVER` for a token that may not come.
        """


class TokenFilter(LogitsProcessor):
    """A processor that does no more than forbid a few tokens.

    So a strategy that wants the best few tokens need not ask about the whole vocabulary: it takes `at_most` more of the
    best, and asks about these.

    Attributes:
        at_most: how many tokens of a hypothesis it forbids in one step, at most.
    """

    at_most: int

    @abstractmethod
    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        """Whether tokens may not come.

        Args:
            token: int32 `[batch * width, n]`, or `[1, n]` for the same tokens in each row.
        Returns:
            bool `[batch * width, n]`, or `[1, n]` where that is so for all.
        """

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        every = tf.range(context.vocabulary_size)[None]
        return logits + tf.where(self.forbids(every, context), NEVER, 0.0)
