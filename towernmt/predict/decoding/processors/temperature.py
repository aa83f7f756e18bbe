"""A distribution that is sharper or flatter than the model's."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.step import StepContext


class Temperature(LogitsProcessor):
    """Divides the logits: below 1 the probable tokens gain, above 1 the others."""

    def __init__(self, temperature: float) -> None:
        """
        Args:
            temperature: above 0.
        """
        self._temperature = temperature

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        return logits / self._temperature
