"""Processors that force tokens, before which all other processors give way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.step import StepContext


class Forcing(LogitsProcessor):
    """A processor that says for some rows what the next token is, or which few it may be."""

    @abstractmethod
    def forces(self, context: StepContext) -> Tensor:
        """Whether it has a say in a row at this step, bool `[rows]`."""


class GivesWay(LogitsProcessor):
    """Another processor, which does not act on rows in which a token is forced.

    So a rule that forbids what the user demands (a repeated n-gram, an avoided word, a minimum length) does not leave a
    hypothesis without any token.
    """

    def __init__(self, processor: LogitsProcessor, forcing: Forcing) -> None:
        """
        Args:
            processor: the one that gives way.
            forcing: the one to which it does.
        """
        self._processor, self._forcing = processor, forcing

    def inputs(self) -> Sequence[TensorSpec]:
        return self._processor.inputs()

    def __call__(self, logits: Tensor, context: StepContext) -> Tensor:
        return tf.where(self._forcing.forces(context)[:, None], logits, self._processor(logits, context))
