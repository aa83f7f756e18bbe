"""What a decoding strategy is: which candidates are kept at each step, and when a sentence is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.predict.decoding.candidates import Candidates
from towernmt.predict.decoding.step import History, StepContext


class Choice(NamedTuple):
    """What a strategy keeps at a step.

    Attributes:
        parent: int32 `[batch, width]`, for each hypothesis that lives on the place of the one it comes from; None where
            each comes from the one at its own place.
        token: int32 `[batch, width]`, the token that it grows by; PAD for one that has ended.
        state: the strategy's own state after the step.
    """

    parent: Tensor | None
    token: Tensor
    state: Any


class Decoded(NamedTuple):
    """What decoding gives, best first, where a strategy has an order.

    Attributes:
        tokens: int32 `[batch, n, length]`: no BOS; EOS where the hypothesis ended by itself (one that was cut at the
            length limit has none); PAD behind.
        scores: float32 `[batch, n]`, as the strategy has them.
        attention: float32 `[batch, n, length, source length]`, 0 behind the end; `()` where that is not collected.
        log_probs: float32 `[batch, n, length]`, of each token by the model, 0 behind the end; `()` where that is not
            collected.
    """

    tokens: Tensor
    scores: Tensor
    attention: Tensor = ()
    log_probs: Tensor = ()


class Strategy(ABC):
    """How hypotheses are kept. The object has settings only; what changes from step to step is in a state.

    A state is a nest of tensors whose first dimension is batch; a dimension may grow by one with each step, as one of
    `History` does. When a sentence is final, its row leaves the state and comes back in that of `result`, filled up
    with zeros where others have grown.

    Attributes:
        width: how many hypotheses of a sentence live at a time.
        reads_attention: whether it reads the attention of the history, which is collected then.
        reorders: whether one may take another's place. If none ever does (`Choice.parent` is None), decoding is faster
            for a strategy that says so.
    """

    width: int
    reads_attention = False
    reorders: bool = True

    def inputs(self) -> Sequence[TensorSpec]:
        """The tensors that it reads from `context.inputs`: a `tf.TensorSpec` with a name each. By default none."""
        return ()

    @abstractmethod
    def start(self, empty: History, inputs: Mapping[str, Tensor]) -> Any:
        """The state before the first step.

        Args:
            empty: `width` hypotheses for each sentence, of no token: `[batch, width, 0]`.
            inputs: by name.
        """

    @abstractmethod
    def choose(self, candidates: Candidates, context: StepContext, state: Any) -> Choice:
        """Take a step: every live hypothesis grows by a token, or gives way to another."""

    @abstractmethod
    def is_done(self, state: Any) -> Tensor:
        """Whether a sentence's hypotheses are final, bool `[batch]`. Decoding ends when all are."""

    @abstractmethod
    def result(self, state: Any, live: History) -> Decoded:
        """What is found.

        Args:
            state: after the last step.
            live: the hypotheses that lived last, `[batch, width, length]`.
        """
