"""Vocabulary shortlists: each sentence is translated only with likely translations of its words and frequent words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD, SPECIAL_PIECES
from towernmt.models.interface import NMTModel, limited_to
from towernmt.models.kernels import as_ids
from towernmt.predict.search.distribution import NEG_INF, Distribution
from towernmt.predict.search.lexical_table import Lexicon

_TARGET_INPUTS = ("constraints", "prefix", "continuation")
"""Inputs with target tokens that a translation must contain; they are added to the list of the sentence."""


class AllowedTokens(NamedTuple):
    """Allowed target tokens of a batch.

    Attributes:
        tokens: int32 `[n]`, ascending, padded with PAD to the minimum number.
        bias: float32 `[batch, n]`: 0 for tokens in the list of a sentence, `NEG_INF` for the others.
        position: int32 `[vocabulary]`, index of each token in `tokens`; n for tokens that are not allowed.
    """

    tokens: Tensor
    bias: Tensor
    position: Tensor


class Shortlist:
    """Target tokens that are allowed in the translation of a sentence.

    Args:
        table: int32 `[source vocabulary, n]`, likely translations of each source token, padded with PAD.
        frequent: int32, tokens that are allowed in every sentence, in addition to the special tokens.
        target_size: size of the target vocabulary.
        name: name of the shortlist in messages.
    """

    def __init__(self, table: np.ndarray, frequent: np.ndarray, target_size: int, name: str = "the shortlist") -> None:
        self._table, self._target_size, self._name = table, target_size, name
        self._always = np.union1d(np.arange(len(SPECIAL_PIECES)), frequent).astype(np.int32)

    @classmethod
    def from_file(cls, path: str, size: int, frequent: int) -> Shortlist:
        """Return the shortlist of a file of `towernmt lexicon`.

        Args:
            path: the file.
            size: number of translations of each source token.
            frequent: number of most frequent target tokens.

        Raises:
            DataError: the file is missing or damaged.
        """
        lexicon = Lexicon.load(path)
        return cls(lexicon.best(size), lexicon.frequent(frequent), lexicon.target_size, path)

    def limit_model(self, model: NMTModel, inputs: Mapping[str, Tensor],
                    minimum: int) -> tuple[NMTModel, AllowedTokens]:
        """Return a model that computes only the logits of the allowed tokens of a batch, and these tokens.

        Args:
            model: the complete model.
            inputs: inputs of decoding by name.
            minimum: minimum number of tokens.

        Raises:
            SettingsError: the table does not match the vocabularies of the model.
        """
        self._check(model)
        allowed = self.allowed_tokens(inputs, minimum)
        return limited_to(model, allowed.tokens), allowed

    def allowed_tokens(self, inputs: Mapping[str, Tensor], minimum: int) -> AllowedTokens:
        """Return the allowed tokens of a batch.

        Args:
            inputs: inputs of decoding by name.
            minimum: minimum number of tokens.
        """
        source = inputs["source"]
        source = source if source.shape.rank == 2 else source[:, :, 0]
        batch = tf.shape(source)[0]
        lists = [tf.reshape(tf.gather(tf.constant(self._table), source), [batch, -1]),
                 tf.tile(tf.constant(self._always)[None], [batch, 1])]
        lists += [tf.reshape(tf.cast(inputs[name], tf.int32), [batch, -1]) for name in _TARGET_INPUTS if name in inputs]
        token_lists = tf.concat(lists, axis=1)
        row = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(token_lists))
        shape = [batch, self._target_size]
        counts = tf.scatter_nd(tf.stack([row, token_lists], axis=2), tf.ones_like(token_lists), shape)
        allowed_by_sentence = counts > 0                # [batch, vocabulary]
        is_allowed = tf.reduce_any(allowed_by_sentence, axis=0)
        tokens = tf.cast(tf.where(is_allowed)[:, 0], tf.int32)
        count = tf.shape(tokens)[0]
        bias = tf.where(tf.gather(allowed_by_sentence, tokens, axis=1), 0.0, NEG_INF)
        padding = tf.maximum(min(minimum, self._target_size) - count, 0)
        tokens = tf.pad(tokens, [[0, padding]], constant_values=PAD)
        bias = tf.pad(bias, [[0, 0], [0, padding]], constant_values=NEG_INF)
        position = tf.where(is_allowed, tf.cumsum(tf.cast(is_allowed, tf.int32)) - 1, count + padding)
        return AllowedTokens(as_ids(tokens), bias, as_ids(position))

    def _check(self, model: NMTModel) -> None:
        """Check that the sizes of the table are those of the model's vocabularies."""
        sizes, expected = (len(self._table), self._target_size), (model.source_vocab_size, model.target_vocab_size)
        if sizes != expected:
            raise SettingsError(f"{self._name} is for vocabularies of {sizes[0]} and {sizes[1]} pieces, but the model "
                                f"has {expected[0]} and {expected[1]}: make one with `towernmt lexicon --model RUN`.")


class ShortlistDistribution(Distribution):
    """Distribution over the listed tokens; all other tokens have the probability 0.

    Args:
        logits: `[rows, n]`, logits of `allowed.tokens`.
        allowed: tokens of the batch; each sentence has the same number of rows.
    """

    def __init__(self, logits: Tensor, allowed: AllowedTokens) -> None:
        logits = tf.cast(logits, tf.float32)
        by_sentence = tf.reshape(logits, [tf.shape(allowed.bias)[0], -1, tf.shape(logits)[1]])
        super().__init__(tf.reshape(by_sentence + allowed.bias[:, None], tf.shape(logits)))
        self._allowed = allowed

    @property
    def logits(self) -> Tensor:
        logits = tf.pad(self._logits, [[0, 0], [0, 1]], constant_values=NEG_INF)
        return tf.gather(logits, self._allowed.position, axis=1)

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        logits, position = super().best(count)
        return logits, tf.gather(self._allowed.tokens, position)

    def log_prob(self, token: Tensor, row: Tensor | None = None) -> Tensor:
        row = tf.cast(tf.range(tf.shape(token)[0]), token.dtype) if row is None else row
        position = tf.gather(self._allowed.position, token)
        last = tf.cast(tf.shape(self._logits)[1] - 1, position.dtype)
        log_prob = super().log_prob(tf.minimum(position, last), row)
        return tf.where(position > last, NEG_INF, log_prob)
