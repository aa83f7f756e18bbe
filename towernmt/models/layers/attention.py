"""What every variant of attention is: one object that a decoder runs over whole sentences, or step by step.

Training runs it over whole sentences (teacher forcing), search step by step with a cache; both forms give the same.
`multi_head` has the Transformer's own two, and `transformer.ssru` one that attends to nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from towernmt.core.tensors import Nest, Tensor
from towernmt.core.tf_compat import tf

MASKED = -1e9
"""Added to the logits of places that must not be attended to."""


class AttentionInputs(NamedTuple):
    """What attention may look at, besides the sequence that it is applied to.

    Attributes:
        bias: float32, broadcast to `[batch, heads, length, length]`, added to the logits between positions of the
            sequence itself: `causal_bias` in a decoder, `padding_bias` in an encoder; None in a step of decoding, where
            every earlier position may be seen.
        source: what `Attention.prepare` made of the source.
        source_bias: float32 `[batch, 1, 1, source length]`, the `padding_bias` of the source; None in an encoder.
        place: a `StepPlace` for attentions that keep what steps write (`empty_places`); None but in a step of decoding.
    """

    bias: Tensor | None = None
    source: Nest = ()
    source_bias: Tensor | None = None
    place: Any = None


class Attended(NamedTuple):
    """What attention gives.

    Attributes:
        output: of the shape of the input.
        weights: the distribution over the source for each position of the input, float32 `[..., source length]`, if it
            was asked for and this attention looks at the source; else None.
    """

    output: Tensor
    weights: Tensor | None = None


class Attention(ABC):
    """A sublayer by which a position sees other positions, of its own sequence or of the source.

    It is called within the variable scope `name`, and holds no tensors: it is made anew wherever it is needed.

    Args:
        name: of its variable scope, unique in its layer; a part of the names of variables in checkpoints.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, source: Tensor) -> Nest:
        """What it needs of the source, such as keys and values: computed once a sentence, not at each step.

        Args:
            source: the encoder's output, float32 `[batch, source length, depth]`.
        Returns:
            a nest of tensors whose first dimension is batch; empty by default.
        """
        return ()

    def empty_cache(self, rows: Tensor) -> Nest:
        """What it remembers of earlier positions before the first.

        Args:
            rows: int32 `[]`, the number of hypotheses.
        Returns:
            a nest of tensors whose first dimension is rows; the second may grow by one a step. Empty by default.
        """
        return ()

    def empty_places(self, batch: Tensor, beam: int) -> Any:
        """Its room in `StepBlocks`, in place of a cache, for one that keeps a vector of each earlier position.

        Args:
            batch: int32 `[]`, the number of sentences.
            beam: hypotheses of each.
        Returns:
            a nest of tensors from `step_blocks.empty_places`. Empty by default, and not asked for if it has a cache.
        """
        return ()

    @abstractmethod
    def whole(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        """All positions at once.

        Args:
            x: float32 `[batch, length, depth]`.
            with_weights: give the distribution over the source, too.
        """

    @abstractmethod
    def step(self, x: Tensor, cache: Nest, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Nest]:
        """The next position of each hypothesis.

        Args:
            x: float32 `[rows, depth]`; those of one sentence stand together.
            cache: from `empty_cache` (`empty_places` if that gives any), or of the step before.
            with_weights: give the distribution over the source, too.
        Returns:
            `[rows, depth]`, with weights `[rows, source length]`; and the new cache.
        """


def padding_bias(length: Tensor, longest: Tensor) -> Tensor:
    """float32 `[batch, 1, 1, longest]`: 0 at tokens, MASKED at padding, from `length` int32 `[batch]`."""
    mask = tf.sequence_mask(length, longest, dtype=tf.float32)
    return ((1.0 - mask) * MASKED)[:, None, None, :]


def causal_bias(length: Tensor) -> Tensor:
    """float32 `[1, 1, length, length]`: 0 at and before each position, MASKED after it."""
    positions = tf.range(length)
    later = tf.cast(positions[None, :] > positions[:, None], tf.float32)
    return (later * MASKED)[None, None]
