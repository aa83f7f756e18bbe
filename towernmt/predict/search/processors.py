"""Processors of logits: which tokens may come next, and how probable they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.models.kernels import padded_tensor
from towernmt.predict.search.decoding_interfaces import LogitsProcessor, TokenFilter
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.step_context import StepContext
from towernmt.predict.search.surfaces import WORD_BREAK


def contained_in_row(ids: Tensor, vocabulary_size: int) -> Tensor:
    """Return whether each token is among the ids of its row, bool `[rows, vocabulary_size]`.

    Args:
        ids: int32 `[rows, n]`, below `vocabulary_size`, padded with PAD.
        vocabulary_size: size of the target vocabulary.
    """
    rows, count = tf.unstack(tf.shape(ids))
    row = tf.broadcast_to(tf.cast(tf.range(rows), ids.dtype)[:, None], [rows, count])
    # PAD has an additional column.
    token_column = tf.where(tf.equal(ids, PAD), tf.constant(vocabulary_size, ids.dtype), ids)
    counts = tf.scatter_nd(tf.stack([row, token_column], axis=2), tf.ones([rows, count], ids.dtype),
                           tf.cast([rows, vocabulary_size + 1], ids.dtype))
    return counts[:, :vocabulary_size] > 0


class Forcing(LogitsProcessor):
    """A processor that allows only one or a few next tokens in some rows."""

    @abstractmethod
    def forces(self, context: StepContext) -> Tensor:
        """Return whether it restricts the next token of a row, bool `[rows]`."""


class UnlessForced(LogitsProcessor):
    """Processor that does not change rows in which another processor forces a token.

    So a rule that forbids what the user demands (a repeated n-gram, an avoided word, a minimum length) does not leave a
    hypothesis without any token.

    Args:
        processor: processor of the other rows.
        forcing: processor that forces tokens.
    """

    def __init__(self, processor: LogitsProcessor, forcing: Forcing) -> None:
        self._processor, self._forcing = processor, forcing

    def inputs(self) -> Sequence[TensorSpec]:
        return self._processor.inputs()

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        return tf.where(self._forcing.forces(context)[:, None], logits, self._processor(logits, context))


class ForbiddenTokens(TokenFilter):
    """Filter that always forbids some tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self.max_forbidden = len(self._tokens)

    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        return tf.reduce_any(tf.equal(token[:, :, None], tf.constant(self._tokens, token.dtype)), axis=2)


class MinimumLength(TokenFilter):
    """Filter that forbids EOS before a hypothesis has a minimum number of tokens.

    Args:
        tokens: minimum number of tokens, without EOS.
        factor: minimum number of tokens per source token (without EOS on both sides); the product is rounded down.
    """

    max_forbidden = 1

    def __init__(self, tokens: int, factor: float = 0.0) -> None:
        self._tokens, self._factor = tokens, factor

    def forbids(self, token: Tensor, context: StepContext) -> Tensor:
        return tf.equal(token, EOS) & self._is_short(context)

    def _is_short(self, context: StepContext) -> Tensor:
        """Return whether hypotheses are too short: bool `[]`, or `[rows, 1]` if it depends on the source."""
        if not self._factor:
            return context.step < self._tokens
        source_tokens = tf.cast(context.for_rows(context.inputs["source_length"]) - 1, tf.float32)
        minimum = tf.maximum(tf.floor(source_tokens * self._factor), self._tokens)
        return (tf.cast(context.step, tf.float32) < minimum)[:, None]


class NoRepeatedNgrams(LogitsProcessor):
    """Processor that forbids tokens which would complete a repeated n-gram (Paulus et al. 2018).

    Args:
        size: n, 1 or more.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        tokens, n = context.tokens, self._size                      # [rows, step]
        count = tf.maximum(context.step - n + 1, 0)                 # n-grams so far
        # The n-gram at index i would be repeated if its first n - 1 tokens are the last n - 1 of the hypothesis.
        same = tf.ones([tf.shape(tokens)[0], count], tf.bool)
        for k in range(n - 1):
            last = context.step - n + 1 + k
            same &= tf.equal(tokens[:, k:k + count], tokens[:, last:last + 1])
        ends = tokens[:, n - 1:n - 1 + count]                       # [rows, count], the last token of each
        row = tf.broadcast_to(tf.cast(tf.range(tf.shape(ends)[0]), ends.dtype)[:, None], tf.shape(ends))
        is_repeated = tf.scatter_nd(tf.stack([row, ends], axis=2), tf.cast(same, ends.dtype),
                                    tf.shape(logits, ends.dtype)) > 0
        return tf.where(is_repeated, NEG_INF, logits)


class RepetitionPenalty(LogitsProcessor):
    """Processor that multiplies the log-probability of tokens that the hypothesis already contains.

    Keskar et al. (2019, "CTRL") divide positive logits and multiply negative ones. Their result depends on the zero of
    the logits, which is arbitrary; log-probabilities have no such choice. Other tokens are not normalised again.

    Args:
        factor: the factor, 1 or more.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        log_sum = tf.reduce_logsumexp(logits, axis=1, keepdims=True)
        tokens = context.tokens                                     # [rows, step]
        row = tf.broadcast_to(tf.cast(tf.range(tf.shape(tokens)[0]), tokens.dtype)[:, None], tf.shape(tokens))
        # A scatter update in place would depend on the engine for a token that occurs twice; a sum does not.
        occurred = tf.scatter_nd(tf.stack([row, tokens], axis=2), tf.ones_like(tokens),
                                 tf.shape(logits, tokens.dtype)) > 0
        return tf.where(occurred, log_sum + (logits - log_sum) * self._factor, logits)


class Temperature(LogitsProcessor):
    """Processor that divides the logits: a temperature below 1 favours probable tokens, above 1 improbable ones.

    The result is normalised over the complete vocabulary, so the scores of a beam are log-probabilities of the new
    distribution. Processors that forbid tokens come after it, so forbidden tokens keep their share of the probability.

    Args:
        temperature: the divisor, above 0.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        divided = logits / self._temperature
        # The search subtracts the log-sum of the model's logits, so the difference of both log-sums is added here.
        return divided + (tf.reduce_logsumexp(logits, axis=1, keepdims=True)
                          - tf.reduce_logsumexp(divided, axis=1, keepdims=True))


_NO_TOKEN = -2


class AvoidedPhrases(LogitsProcessor):
    """Processor that forbids the last token of a phrase after its other tokens (Sockeye's "avoid").

    Args:
        breaks: bool `[vocabulary]`, whether a token matches `WORD_BREAK`; BOS is the beginning.
    """

    def __init__(self, breaks: np.ndarray) -> None:
        self._breaks = breaks

    def inputs(self) -> Sequence[TensorSpec]:
        """Return `avoid`: the phrases of each sentence, int32 `[batch, phrases, length]`, padded with PAD at the end.

        A phrase may begin with BOS, which matches only the beginning, or with `WORD_BREAK`. It may end with EOS.
        """
        return [tf.TensorSpec([None, None, None], tf.int32, "avoid")]

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        backwards = _backwards(context.inputs["avoid"])         # [batch, phrases, length], the last token first
        occurs = self._occurs(backwards[:, None, :, 1:], context)
        ends = tf.where(occurs, backwards[:, None, :, 0], tf.constant(PAD, backwards.dtype))
        ends = tf.reshape(ends, [-1, tf.shape(ends)[2]])
        return tf.where(contained_in_row(ends, context.vocabulary_size), NEG_INF, logits)

    def _occurs(self, phrases: Tensor, context: StepContext) -> Tensor:
        """Return whether a hypothesis ends with the tokens of a phrase without its last one.

        Args:
            phrases: int32 `[batch, 1, phrases, n]`, reversed.
            context: the hypotheses.

        Returns:
            bool `[batch, width, phrases]`.
        """
        count = tf.shape(phrases)[3]
        tokens = padded_tensor(context.history.tokens, [[0, 0], [0, 0], [1, 0]], BOS)
        tokens = padded_tensor(tokens, [[0, 0], [0, 0], [count, 0]], _NO_TOKEN)
        recent = tf.reverse(tokens[:, :, -count:], [2])         # [batch, width, n]
        breaks = (recent >= 0) & tf.gather(tf.constant(self._breaks), tf.maximum(recent, 0))
        recent, breaks = recent[:, :, None], breaks[:, :, None]
        return tf.reduce_all(tf.equal(phrases, PAD) | tf.equal(phrases, recent)
                             | (tf.equal(phrases, WORD_BREAK) & breaks), axis=3)


def _backwards(phrases: Tensor) -> Tensor:
    """Return the reversed phrases, padded with PAD, with an additional column."""
    phrases = padded_tensor(phrases, [[0, 0], [0, 0], [0, 1]], PAD)
    rows = tf.reshape(phrases, [-1, tf.shape(phrases)[2]])
    lengths = tf.math.count_nonzero(rows, axis=1, dtype=rows.dtype)
    return tf.reshape(tf.reverse_sequence(rows, lengths, seq_axis=1), tf.shape(phrases))


class TargetPrefix(Forcing):
    """Processor that forces the tokens of the input `prefix`, without a change of their log-probabilities."""

    def inputs(self) -> Sequence[TensorSpec]:
        """Return `prefix`: the ids of each sentence, int32 `[batch, length]`, padded with PAD."""
        return [tf.TensorSpec([None, None], tf.int32, "prefix")]

    def forces(self, context: StepContext) -> Tensor:
        return tf.not_equal(self._forced_token(context), PAD)

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        forced = self._forced_token(context)[:, None]
        all_tokens = tf.cast(tf.range(context.vocabulary_size), forced.dtype)[None]
        return tf.where(tf.equal(forced, PAD) | tf.equal(forced, all_tokens), logits, NEG_INF)

    def _forced_token(self, context: StepContext) -> Tensor:
        """Return the forced token of each row, int32 `[rows]`; PAD if any token is allowed."""
        prefix = padded_tensor(context.inputs["prefix"], [[0, 0], [0, 1]], PAD)
        return context.for_rows(prefix[:, tf.minimum(context.step, tf.shape(prefix)[1] - 1)])


class WordBeginning(Forcing):
    """Processor that forces the text after the prefix to begin with a string, in any segmentation.

    The input `continuation` lists, for each number of bytes that are written already, the tokens that continue the
    string: those that write a beginning of its rest, and those that write the complete rest and more.

    Args:
        lengths: int32 `[vocabulary]`, number of bytes of each token.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        self._lengths = lengths

    def inputs(self) -> Sequence[TensorSpec]:
        """Return `continuation` and `prefix` (see `TargetPrefix`).

        `continuation` is int32 `[batch, bytes, tokens]`, ids padded with PAD; only PAD if any token is allowed.
        """
        return [tf.TensorSpec([None, None, None], tf.int32, "continuation"),
                tf.TensorSpec([None, None], tf.int32, "prefix")]

    def forces(self, context: StepContext) -> Tensor:
        return tf.reduce_any(tf.not_equal(self._allowed_tokens(context), PAD), axis=1)

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        ids = self._allowed_tokens(context)
        is_free = tf.reduce_all(tf.equal(ids, PAD), axis=1, keepdims=True)
        return tf.where(is_free | contained_in_row(ids, context.vocabulary_size), logits, NEG_INF)

    def _allowed_tokens(self, context: StepContext) -> Tensor:
        """Return the allowed tokens of each row, int32 `[rows, tokens]`; only PAD if any token is allowed."""
        dtype = context.tokens.dtype
        prefix = context.for_rows(context.inputs["prefix"])
        prefix_length = tf.math.count_nonzero(prefix, axis=1, dtype=dtype)                  # [rows]
        is_after_prefix = tf.cast(tf.range(context.step), dtype)[None] >= prefix_length[:, None]
        lengths = tf.gather(tf.constant(self._lengths, dtype), context.tokens)
        written = tf.reduce_sum(tf.where(is_after_prefix, lengths, tf.zeros([], dtype)), axis=1)
        table = padded_tensor(context.inputs["continuation"], [[0, 0], [0, 1], [0, 0]], PAD)
        last_row = tf.cast(tf.shape(table)[1] - 1, dtype)
        row = tf.where(tf.cast(context.step, dtype) < prefix_length, last_row, tf.minimum(written, last_row))
        sentence = tf.cast(tf.range(tf.shape(row)[0]), dtype) // context.width
        return tf.gather_nd(table, tf.stack([sentence, row], axis=1))
