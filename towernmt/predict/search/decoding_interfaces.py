"""The interfaces of search: the state of a step, the candidates of a step, processors of logits, and strategies.

Tokens and indices are *ids*: int32 on a CPU and int64 on a GPU, where TensorFlow computes with int32 on the host
(`models.kernels.as_ids`). Compare them with Python numbers or with tensors of their own dtype.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.models.kernels import as_ids, padded_tensor


class Distribution:
    """Probabilities of all tokens of the vocabulary, with a row for each hypothesis, computed on demand.

    Args:
        logits: `[rows, vocabulary]`, logits of the model.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = tf.cast(logits, tf.float32)
        self._log_sums: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """Logits of the complete vocabulary, float32 `[rows, vocabulary]`."""
        return self._logits

    @property
    def log_sums(self) -> Tensor:
        """log(sum(exp(logits))) of each row, float32 `[rows]`."""
        if self._log_sums is None:
            self._log_sums = self.log_sum(tf.reduce_max(self._logits, axis=1, keepdims=True))[:, 0]
        return self._log_sums

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the highest logits of each row, float32 `[rows, count]`, and their tokens, ids; highest first."""
        return top_of_rows(self._logits, count)

    def log_prob(self, token: Tensor, row: Tensor | None = None) -> Tensor:
        """Return log-probabilities of tokens, float32 in the shape of `token`.

        Args:
            token: ids `[rows]`, a token of each row; with `row`, a tensor of any shape.
            row: ids in the shape of `token`, row of each token.
        """
        if row is None:
            return tf.gather(self._logits, token, batch_dims=1) - self.log_sums
        return tf.gather_nd(self._logits, tf.stack([row, token], axis=-1)) - tf.gather(self.log_sums, row)

    def log_sum(self, highest: Tensor) -> Tensor:
        """Return log(sum(exp(logits))), float32 `[rows, 1]`; `highest` is the highest logit of each row."""
        return highest + tf.math.log(tf.reduce_sum(tf.exp(self._logits - highest), axis=1, keepdims=True))


def top_of_rows(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row, in descending order; of equal values, the first.

    TensorFlow's `top_k` takes about 7 ns per value on a CPU, longer than the product that computes a logit. So each row
    is divided into groups, and `top_k` reads only the `count` groups with the largest maxima, which contain the result.

    Args:
        x: float32 `[rows, size]`.
        count: number of values, at most `size`.

    Returns:
        values float32 and their indices (`kernels.as_ids`), each `[rows, count]`.
    """
    size = x.shape[1]
    group = _group_size(size, count) if size else 0
    if not group:
        values, index = tf.math.top_k(x, count)
        return values, as_ids(index)
    if size % group:
        x = tf.pad(x, [[0, 0], [0, -size % group]], constant_values=float("-inf"))
    grouped = tf.reshape(x, [-1, -(-size // group), group])
    _, best_groups = tf.math.top_k(tf.reduce_max(grouped, axis=2), count)
    best_groups = -tf.math.top_k(-as_ids(best_groups), count)[0]                # [rows, count], ascending
    members = tf.reshape(tf.gather(grouped, best_groups, batch_dims=1), [-1, count * group])
    values, index = tf.math.top_k(members, count)
    index = as_ids(index)
    return values, tf.gather(best_groups, index // group, batch_dims=1) * group + index % group


def _group_size(size: int, count: int) -> int:
    """Return the size of groups with which `top_k` sees the fewest values; 0 for no groups."""
    ideal = math.isqrt(size // count)
    if ideal < 4:
        return 0
    return next((group for group in range(ideal, 2 * ideal) if size % group == 0), ideal)


class History(NamedTuple):
    """Tokens of hypotheses, `n` for each sentence, with their attention and log-probabilities.

    Attributes:
        tokens: ids `[batch, n, length]`, without BOS.
        attention: float32 `[batch, n, length, source length]`, attention of each token to the source positions; `()` if
            it is not collected.
        log_probs: float32 `[batch, n, length]`, log-probability of each token, 0 for PAD; `()` if it is not
            collected.
    """

    tokens: Tensor
    attention: Tensor = ()
    log_probs: Tensor = ()

    def selected(self, index: Tensor) -> History:
        """Return the hypotheses at the indices `index`, ids `[batch, m]`, from 0 to n - 1."""
        return _gathered(self, index)

    def followed_by(self, step: History) -> History:
        """Return the hypotheses with the tokens of `step` appended."""
        return tf.nest.map_structure(lambda before, new: tf.concat([before, new], axis=2), self, step)

    def joined_with(self, longer: History) -> History:
        """Return these hypotheses, padded by one token, and hypotheses that have one more token.

        Args:
            longer: `[batch, m, length + 1]`.

        Returns:
            the hypotheses, `[batch, n + m, length + 1]`.
        """
        def joined(tensor: Tensor, added: Tensor) -> Tensor:
            padding = [[0, 0], [0, 0], [0, 1]] + [[0, 0]] * (tensor.shape.rank - 3)
            return tf.concat([padded_tensor(tensor, padding, PAD), added], axis=1)

        return tf.nest.map_structure(joined, self, longer)

    def where(self, exists: Tensor) -> History:
        """Return the hypotheses with PAD and 0 in the entries for which `exists`, bool `[batch, n]`, is False."""
        def cleared(tensor: Tensor) -> Tensor:
            mask = tf.reshape(exists, [-1, exists.shape[1]] + [1] * (tensor.shape.rank - 2))
            return tf.where(mask, tensor, tf.zeros_like(tensor))

        return tf.nest.map_structure(cleared, self)

    def without_attention_of_padding(self) -> History:
        """Return the hypotheses with an attention of 0 for PAD."""
        written = tf.not_equal(self.tokens, PAD)[:, :, :, None]
        return self._replace(attention=tf.nest.map_structure(
            lambda tensor: tf.where(written, tensor, tf.zeros_like(tensor)), self.attention))


class StepContext(NamedTuple):
    """Data of a step for processors and strategies.

    The model decodes rows: row `sentence * width + index` is the hypothesis with this index of the sentence.

    Attributes:
        step: int32 `[]`, number of tokens of each hypothesis.
        limit: int32 `[batch]`, maximum number of tokens of a hypothesis of the sentence.
        history: the live hypotheses, `[batch, width, step]`.
        attention: float32 `[batch, width, source length]`, attention of the next token to the source positions; `()` if
            it is not collected.
        inputs: tensors that the model, the strategy and the processors declared, by name; inputs of sentences have
            `batch` rows (see `for_rows`).
        vocabulary_size: size of the target vocabulary.
        distribution: probabilities of the next token; None if log-probabilities are not collected.
    """

    step: Tensor
    limit: Tensor
    history: History
    attention: Tensor
    inputs: Mapping[str, Tensor]
    vocabulary_size: int
    distribution: Distribution | None = None

    @property
    def width(self) -> int:
        """Number of live hypotheses of a sentence."""
        return int(self.history.tokens.shape[1])

    @property
    def tokens(self) -> Tensor:
        """Tokens of each row, ids `[batch * width, step]`."""
        return tf.reshape(self.history.tokens, [-1, self.step])

    def for_rows(self, tensor: Tensor) -> Tensor:
        """Repeat a tensor of sentences, `[batch, ...]`, for their hypotheses: `[rows, ...]`."""
        return tf.repeat(tensor, self.width, axis=0)

    def extend(self, parent: Tensor | None, token: Tensor) -> History:
        """Return hypotheses with one more token.

        Args:
            parent: ids `[batch, n]`, index of the live hypothesis to extend; None to extend all in their order.
            token: ids `[batch, n]`, the appended tokens.

        Returns:
            the hypotheses, `[batch, n, step + 1]`.
        """
        history, attention, log_prob = self.history, self.attention, self._log_prob(parent, token)
        if parent is not None:
            history, attention = history.selected(parent), _gathered(attention, parent)
        new_token = tf.nest.map_structure(lambda tensor: tf.expand_dims(tensor, 2), History(token, attention, log_prob))
        return history.followed_by(new_token)

    def _log_prob(self, parent: Tensor | None, token: Tensor) -> Tensor:
        """Return log-probabilities of appended tokens, float32 `[batch, n]`, 0 for PAD; `()` if not collected."""
        if self.distribution is None:
            return ()
        hypothesis = tf.cast(tf.range(self.width), token.dtype)[None] if parent is None else parent
        row = tf.cast(tf.range(tf.shape(token)[0]), token.dtype)[:, None] * self.width + hypothesis
        return tf.where(tf.equal(token, PAD), 0.0, self.distribution.log_prob(token, row))


def _gathered(nest: Any, index: Tensor) -> Any:
    """Gather tensors `[batch, n, ...]` at the indices, ids `[batch, m]`: `[batch, m, ...]`."""
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, index, batch_dims=1), nest)


NEG_INF = float("-inf")
"""Logit of a forbidden token, log-probability of an impossible hypothesis, and score of an empty entry."""


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
