"""The interfaces of search: processors of logits, the candidates of a step, and strategies.

Tokens and indices are *ids*, as in `step_context`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.predict.search.distribution import NEG_INF, Distribution, top_of_rows
from towernmt.predict.search.step_context import History, StepContext


class LogitsProcessor(ABC):
    """Change of the logits from which a strategy chooses.

    Logits are not normalised again, so other tokens keep their probability, and a forbidden token keeps its share.
    """

    def inputs(self) -> Sequence[TensorSpec]:
        """Return the tensors that it reads from `context.inputs`, as `tf.TensorSpec` with names. None by default."""
        return ()

    @abstractmethod
    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        """Return the changed logits, in the same shape; `NEG_INF` for a forbidden token.

        Args:
            logits: float32 `[batch * width, vocabulary]`. Adding a number to a complete row has no effect.
            context: the hypotheses and the inputs.
        """


class TokenFilter(LogitsProcessor):
    """A processor that only forbids a few tokens.

    A strategy that needs the best few tokens does not check the complete vocabulary: it takes `max_forbidden` more of
    the best tokens and checks these.

    Attributes:
        max_forbidden: maximum number of tokens of a hypothesis that it forbids in one step.
    """

    max_forbidden: int

    @abstractmethod
    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        """Return whether tokens are forbidden: bool `[batch * width, n]`, or `[1, n]` if all rows are equal.

        Args:
            token: ids `[batch * width, n]`, or `[1, n]` for the same tokens in each row.
            context: the hypotheses and the inputs.
        """

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        all_tokens = tf.cast(tf.range(context.vocabulary_size), context.history.tokens.dtype)[None]
        return logits + tf.where(self.forbids(all_tokens, context), NEG_INF, 0.0)


class Candidates:
    """Tokens from which a strategy chooses at a step, computed on demand.

    Args:
        distribution: distribution of the model, `[batch * width, vocabulary]`.
        processors: processors in the order in which they act.
        context: the hypotheses and the inputs.
    """

    def __init__(self, distribution: Distribution, processors: Sequence[LogitsProcessor], context: StepContext) -> None:
        self._distribution = distribution
        self._processors, self._context = processors, context

    def logits(self) -> Tensor:
        """Return the logits after all processors, float32 `[batch * width, vocabulary]`."""
        return self._processed(self._processors)

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the most probable tokens of each row, best first; of equal ones, the smallest id.

        Only these tokens are normalised, without a log-softmax of the complete vocabulary. Filters at the end of the
        chain read only these tokens, too.

        Args:
            count: minimum number of tokens, if the vocabulary is large enough.

        Returns:
            log-probability float32 and token ids, each `[batch * width, count or a few more]`. Tokens that a filter
            forbids are included, with log-probability `NEG_INF`.
        """
        processors, filters = _split(self._processors)
        num_tokens = min(count + sum(filter.max_forbidden for filter in filters), self._context.vocabulary_size)
        if processors:
            logits, token = top_of_rows(self._processed(processors), num_tokens)
            log_prob = logits - self._distribution.log_sums[:, None]
        else:
            logits, token = self._distribution.best(num_tokens)
            log_prob = logits - self._distribution.log_sum(logits[:, :1])
        for filter in filters:
            log_prob = tf.where(filter.forbids(token, self._context), NEG_INF, log_prob)
        return log_prob, token

    def log_probs(self, token: Tensor) -> Tensor:
        """Return the log-probabilities of tokens of each row after all processors.

        Args:
            token: ids `[batch * width, n]`.

        Returns:
            float32 `[batch * width, n]`; `NEG_INF` for forbidden tokens.
        """
        processors, filters = _split(self._processors)
        log_prob = tf.gather(self._processed(processors), token, batch_dims=1) - self._distribution.log_sums[:, None]
        for filter in filters:
            log_prob = tf.where(filter.forbids(token, self._context), NEG_INF, log_prob)
        return log_prob

    def log_prob(self, token: Tensor) -> Tensor:
        """Return the model's log-probability of a token of each row, without the processors.

        Args:
            token: ids `[batch * width]`.

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
    """Divide the chain into the processors up to the last one that reads all logits, and the filters after it."""
    filters: list[TokenFilter] = []
    for processor in reversed(processors):
        if not isinstance(processor, TokenFilter):
            break
        filters.insert(0, processor)
    return processors[:len(processors) - len(filters)], filters


class StepChoice(NamedTuple):
    """Live hypotheses after a step, as chosen by a strategy.

    Attributes:
        parent: ids `[batch, width]`, index of the hypothesis that each one extends; None if each extends the one with
            its own index.
        token: ids `[batch, width]`, the appended token; PAD for a hypothesis that has ended.
        state: state of the strategy after the step.
    """

    parent: Tensor | None
    token: Tensor
    state: Any


class Decoded(NamedTuple):
    """Result of decoding, best first if the strategy has an order.

    Attributes:
        tokens: int32 `[batch, n, length]`: no BOS; EOS at the end, except in a hypothesis that was cut at the length
            limit; then PAD.
        scores: float32 `[batch, n]`, scores of the strategy.
        attention: float32 `[batch, n, length, source length]`, 0 after the end; `()` if it is not collected.
        log_probs: float32 `[batch, n, length]`, log-probability of each token, 0 after the end; `()` if it is not
            collected.
    """

    tokens: Tensor
    scores: Tensor
    attention: Tensor = ()
    log_probs: Tensor = ()


class Strategy(ABC):
    """Selection of hypotheses. The object contains only settings; a separate state changes from step to step.

    A state is a nest of tensors whose first dimension is batch. Another dimension may grow by one at each step, as in
    `History`. When a sentence is final, its row leaves the state. In the state for `result`, this row is padded with
    zeros to the size of the others.

    Attributes:
        width: number of live hypotheses of a sentence.
        reads_attention: whether it reads the attention of the history, so that decoding collects attention.
        reorders: whether a hypothesis may extend one with another index. If this is False, `StepChoice.parent` is
            always None, and decoding is faster.
    """

    width: int
    reads_attention = False
    reorders: bool = True

    def inputs(self) -> Sequence[TensorSpec]:
        """Return the tensors that it reads from `context.inputs`, as `tf.TensorSpec` with names. None by default."""
        return ()

    @abstractmethod
    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> Any:
        """Return the state before the first step.

        Args:
            empty: `width` hypotheses without tokens for each sentence: `[batch, width, 0]`.
            inputs: inputs by name.
        """

    @abstractmethod
    def choose(self, candidates: Candidates, context: StepContext, state: Any) -> StepChoice:
        """Choose the live hypotheses after a step from the extensions of the current ones."""

    @abstractmethod
    def is_done(self, state: Any) -> Tensor:
        """Return whether the hypotheses of a sentence are final, bool `[batch]`. Decoding ends when all are final."""

    @abstractmethod
    def result(self, state: Any, live: History) -> Decoded:
        """Return the result of the search.

        Args:
            state: state after the last step.
            live: live hypotheses after the last step, `[batch, width, length]`.
        """
