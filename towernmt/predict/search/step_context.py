"""The state of a decoding step: the live hypotheses, and the data that processors and strategies read.

Tokens and indices are *ids*: int32 on a CPU and int64 on a GPU, where TensorFlow computes with int32 on the host
(`models.kernels.as_ids`). Compare them with Python numbers or with tensors of their own dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.models.kernels import padded_tensor
from towernmt.predict.search.distribution import Distribution


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
