"""A distribution that is sharper or flatter than the model's."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.step import StepContext


class Temperature(LogitsProcessor):
    """Divides the logits: below 1 the probable tokens gain, above 1 the others.

    The probabilities are of the whole vocabulary as they were, so that a beam's scores are log-probabilities of the new
    distribution. It stands before what forbids tokens, which then keep their share of that.
    """

    def __init__(self, temperature: float) -> None:
        """
        Args:
            temperature: above 0.
        """
        self._temperature = temperature

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        divided = logits / self._temperature
        # Who comes behind subtracts the log-sum of the model's logits from these.
        return divided + (tf.reduce_logsumexp(logits, axis=1, keepdims=True)
                          - tf.reduce_logsumexp(divided, axis=1, keepdims=True))
