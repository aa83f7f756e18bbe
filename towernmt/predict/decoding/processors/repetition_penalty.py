"""Tokens that a translation has already, made less probable."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.step import StepContext


class RepetitionPenalty(LogitsProcessor):
    """Multiplies the log-probability of tokens that the hypothesis has already.

    Keskar et al. (2019, "CTRL") divide a positive logit and multiply a negative one, which depends on where a model's
    logits have their zero; log-probabilities have one. The others are not normalised again.
    """

    def __init__(self, factor: float) -> None:
        """
        Args:
            factor: 1 or more.
        """
        self._factor = factor

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        log_sum = tf.reduce_logsumexp(logits, axis=1, keepdims=True)
        tokens = context.tokens                                     # [rows, step]
        row = tf.broadcast_to(tf.range(tf.shape(tokens)[0])[:, None], tf.shape(tokens))
        # Added up and not updated in place, which not every engine does alike for a token that comes twice.
        came = tf.scatter_nd(tf.stack([row, tokens], axis=2), tf.ones_like(tokens), tf.shape(logits)) > 0
        return tf.where(came, log_sum + (logits - log_sum) * self._factor, logits)
