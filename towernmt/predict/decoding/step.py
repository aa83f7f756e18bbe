"""What is known at a step of decoding: the hypotheses so far, and the inputs of their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD
from towernmt.predict.decoding.distribution import Distribution


class History(NamedTuple):
    """What is kept of every step of some hypotheses, `n` for each sentence.

    Attributes:
        tokens: int32 `[batch, n, length]`, without BOS.
        attention: float32 `[batch, n, length, source length]`, which source positions the model looked at when it chose
            each token; `()` where that is not collected.
        log_probs: float32 `[batch, n, length]`, of each token by the model, 0 for PAD; `()` where that is not
            collected.
    """

    tokens: Tensor
    attention: Tensor = ()
    log_probs: Tensor = ()

    def selected(self, place: Tensor) -> History:
        """The hypotheses at `place`, int32 `[batch, m]`: a number from 0 to n - 1 each."""
        return _gathered(self, place)

    def followed_by(self, step: History) -> History:
        """These hypotheses, longer by what `step` has of them."""
        return tf.nest.map_structure(lambda before, new: tf.concat([before, new], axis=2), self, step)

    def without_attention_of_padding(self) -> History:
        """With an attention of 0 where the token is PAD."""
        written = tf.not_equal(self.tokens, PAD)[:, :, :, None]
        return self._replace(attention=tf.nest.map_structure(
            lambda tensor: tf.where(written, tensor, tf.zeros_like(tensor)), self.attention))


class StepContext(NamedTuple):
    """What processors and strategies may read at a step.

    The model decodes rows: row `sentence * width + place` is the hypothesis at that place of the sentence.

    Attributes:
        step: int32 `[]`, how many tokens each hypothesis has.
        limit: int32 `[batch]`, how many tokens a hypothesis of the sentence may have; at the limit it is cut.
        history: the hypotheses that live, `[batch, width, step]`.
        attention: float32 `[batch, width, source length]`, which source positions the model looks at for the next
            token; `()` where that is not collected.
        inputs: the tensors that the model, the strategy and the processors declared, by name; one that belongs to
            sentences has `batch` rows (see `for_rows`).
        vocabulary_size: of the target.
        distribution: what the model says of the next token, where log-probabilities are collected.
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
        """How many hypotheses of a sentence live."""
        return int(self.history.tokens.shape[1])

    @property
    def tokens(self) -> Tensor:
        """The tokens of each row so far, int32 `[batch * width, step]`."""
        return tf.reshape(self.history.tokens, [-1, self.step])

    def for_rows(self, tensor: Tensor) -> Tensor:
        """A tensor with a row for each sentence, `[batch, ...]`, repeated for its hypotheses, `[rows, ...]`."""
        return tf.repeat(tensor, self.width, axis=0)

    def grown(self, parent: Tensor | None, token: Tensor) -> History:
        """Live hypotheses, with one more token each.

        Args:
            parent: int32 `[batch, n]`, the place of the hypothesis that grows; None for all live ones in their order.
            token: int32 `[batch, n]`.
        Returns:
            `[batch, n, step + 1]`.
        """
        before, attention, log_prob = self.history, self.attention, self._log_prob(parent, token)
        if parent is not None:
            before, attention = before.selected(parent), _gathered(attention, parent)
        step = tf.nest.map_structure(lambda tensor: tf.expand_dims(tensor, 2), History(token, attention, log_prob))
        return before.followed_by(step)

    def _log_prob(self, parent: Tensor | None, token: Tensor) -> Tensor:
        """Of tokens that follow hypotheses, as for `grown`: float32 `[batch, n]`, 0 for PAD; `()` if not collected."""
        if self.distribution is None:
            return ()
        place = tf.range(self.width)[None] if parent is None else parent
        row = tf.range(tf.shape(token)[0])[:, None] * self.width + place
        return tf.where(tf.equal(token, PAD), 0.0, self.distribution.log_prob(token, row))


def _gathered(nest: Any, place: Tensor) -> Any:
    """Tensors `[batch, n, ...]` at `place`, int32 `[batch, m]`: `[batch, m, ...]`."""
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, place, batch_dims=1), nest)
