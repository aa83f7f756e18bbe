"""The next tokens of all hypotheses: the model's logits behind the chain of processors."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.distribution import Distribution, top_of_rows
from towernmt.predict.decoding.processors.processor import NEVER, LogitsProcessor, TokenFilter
from towernmt.predict.decoding.step import StepContext


class Candidates:
    """What a strategy chooses from at a step. Nothing is computed but what it asks for."""

    def __init__(self, distribution: Distribution, processors: Sequence[LogitsProcessor], context: StepContext) -> None:
        """
        Args:
            distribution: the model's, `[batch * width, vocabulary]`.
            processors: in the order in which they act.
        """
        self._distribution = distribution
        self._processors, self._context = processors, context

    def logits(self) -> Tensor:
        """The logits behind all processors, float32 `[batch * width, vocabulary]`."""
        return self._processed(self._processors)

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """The most probable tokens of each row, best first; of equal ones the smaller id is first.

        The full log-softmax never exists: only these are normalised. Filters at the end of the chain do not see the
        whole vocabulary either.

        Args:
            count: how many are wanted at least, if the vocabulary has so many.
        Returns:
            log-probability float32 and token int32, each `[batch * width, count or a few more]`. What a filter forbids
            is among them, with log-probability `NEVER`.
        """
        before, filters = _split(self._processors)
        wanted = min(count + sum(filter.at_most for filter in filters), self._context.vocabulary_size)
        if before:
            top, token = top_of_rows(self._processed(before), wanted)
            log_prob = top - self._distribution.log_sums[:, None]
        else:
            top, token = self._distribution.best(wanted)
            log_prob = top - self._distribution.log_sum(top[:, :1])
        for filter in filters:
            log_prob = tf.where(filter.forbids(token, self._context), NEVER, log_prob)
        return log_prob, token

    def log_probs(self, token: Tensor) -> Tensor:
        """The log-probability of some tokens of each row behind all processors, as `best` has it.

        Args:
            token: int32 `[batch * width, n]`.
        Returns:
            float32 `[batch * width, n]`; `NEVER` for what is forbidden.
        """
        before, filters = _split(self._processors)
        log_prob = tf.gather(self._processed(before), token, batch_dims=1) - self._distribution.log_sums[:, None]
        for filter in filters:
            log_prob = tf.where(filter.forbids(token, self._context), NEVER, log_prob)
        return log_prob

    def log_prob(self, token: Tensor) -> Tensor:
        """The model's own log-probability of a token in each row, whatever the processors say.

        Args:
            token: int32 `[batch * width]`.
        Returns:
            float32 `[batch * width]`.
        """
        return self._distribution.log_prob(token)

    def _processed(self, processors: Sequence[LogitsProcessor]) -> Tensor:
        logits = self._distribution.logits
        for processor in processors:
            logits = processor(logits, self._context)
        return logits


def _split(processors: Sequence[LogitsProcessor]) -> tuple[Sequence[LogitsProcessor], list[TokenFilter]]:
    """The chain up to the last processor that must see all logits, and the filters behind it."""
    filters: list[TokenFilter] = []
    for processor in reversed(processors):
        if not isinstance(processor, TokenFilter):
            break
        filters.insert(0, processor)
    return processors[:len(processors) - len(filters)], filters
