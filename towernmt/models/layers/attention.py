"""The interface of attention layers, and the key/value cache that decoding writes step by step.

Training runs an attention over whole sentences (teacher forcing), search runs it step by step with a cache; both
forms give the same values. `multi_head` has the Transformer's two attentions; the SSRU of `models.transformer`
attends to nothing.

A cache that grows by `tf.concat`, and whose rows search gathers at each step, is copied completely several times a
step. Here a step writes the keys and values of all hypotheses of a sentence at its own position, and search leaves
them there. Search keeps a small number instead: the beam position that each live hypothesis came from at each step.
By these numbers a hypothesis sees only its own ancestors among everything that was written for its sentence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from towernmt.core.tensors import Nest, Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels import as_ids, count_to, is_hoisting, padded_tensor, token_mask

BLOCK = 16
"""Number of steps by which the buffers grow."""
_NONE = -1


class StepBlocks(NamedTuple):
    """Values of the decoding steps so far, with capacity for further steps.

    Attributes:
        values: nest of tensors `[batch, heads, capacity * beam, depth]`. The values of hypothesis `b` of a sentence in
            step `s` are at index `s * beam + b`. Search does not move them.
        ancestor: ids `[batch, beam, capacity]`, the beam index that each hypothesis had in each step; -1 for steps in
            the future.
    """

    values: Any
    ancestor: Tensor

    @property
    def beam(self) -> int:
        """Number of hypotheses of a sentence."""
        return int(self.ancestor.shape[1])

    @property
    def capacity(self) -> Tensor:
        """Number of steps for which memory is allocated, int32 `[]`."""
        return tf.shape(self.ancestor)[2]

    def separated(self) -> StepBlocks:
        """Return blocks in which each hypothesis is the only one of a sentence, for a search that never reorders them.

        Call it only before the first step.
        """
        beam = self.beam
        values = tf.nest.map_structure(lambda tensor: _by_hypothesis(tensor, beam), self.values)
        return StepBlocks(values, tf.reshape(self.ancestor, [-1, 1, self.capacity]))

    def reordered(self, parent: Tensor) -> StepBlocks:
        """Return blocks in which each hypothesis continues the one with beam index `parent`, ids `[batch, beam]`."""
        return self._replace(ancestor=tf.gather(self.ancestor, parent, batch_dims=1))

    def of_sentences(self, rows: Tensor) -> StepBlocks:
        """Return the blocks of the sentences with indices `rows`, int32 `[n]`."""
        return StepBlocks(*tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tuple(self)))

    def with_capacity(self, steps: Tensor) -> StepBlocks:
        """Return blocks with capacity for `steps`, int32 `[]`, at least the current capacity."""
        added_steps = steps - self.capacity
        values = tf.nest.map_structure(
            lambda tensor: tf.pad(tensor, [[0, 0], [0, 0], [0, added_steps * self.beam], [0, 0]]), self.values)
        return StepBlocks(values, padded_tensor(self.ancestor, [[0, 0], [0, 0], [0, added_steps]], _NONE))

    def shapes(self) -> StepBlocks:
        """Return the static shapes in a loop that increases the capacity."""
        return tf.nest.map_structure(
            lambda tensor: tf.TensorShape([*tensor.shape[:2], None, *tensor.shape[3:]]), self)


class StepPosition(NamedTuple):
    """Position of a decoding step in `StepBlocks`, and the mask of the values that each hypothesis may read.

    Attributes:
        step: int32 `[]`, number of earlier steps.
        beam: number of hypotheses of a sentence.
        capacity: int32 `[]`, number of steps for which the blocks have memory.
        bias: float32 `[batch, 1, beam, capacity * beam]`: 0 at the hypothesis and its ancestors, `MASKED` elsewhere.
    """

    step: Tensor
    beam: int
    capacity: Tensor
    bias: Tensor

    def insert(self, stored: Tensor, values: Tensor) -> Tensor:
        """Return `stored` with the values of this step written into it.

        Args:
            stored: values of earlier steps, `[batch, heads, capacity * beam, depth]`.
            values: values of this step, `[batch, heads, beam, depth]`.
        """
        heads, size = stored.shape[1], self.beam * stored.shape[3]
        rows = tf.range(tf.shape(self.bias)[0] * heads) * self.capacity + self.step
        by_step = _with_rows(tf.reshape(stored, [-1, size]), rows, tf.reshape(values, [-1, size]))
        return tf.reshape(by_step, tf.stack([-1, heads, self.capacity * self.beam, stored.shape[3]]))


def empty_blocks(values: Any, batch: Tensor, beam: int) -> StepBlocks:
    """Return the blocks before the first step.

    Args:
        values: nest of results of `empty_values`.
        batch: int32 `[]`, number of sentences.
        beam: number of hypotheses of a sentence.
    """
    return StepBlocks(values, as_ids(tf.fill([batch, beam, BLOCK], _NONE)))


def empty_values(batch: Tensor, beam: int, heads: int, depth: int, dtype: Any) -> Tensor:
    """Return memory for a vector of each head and hypothesis in `BLOCK` steps, `[batch, heads, BLOCK * beam, depth]`.

    It is not a constant: TensorFlow merges equal constants, but these tensors are written in place.
    """
    return tf.raw_ops.Empty(shape=tf.stack([batch, heads, BLOCK * beam, depth]), dtype=dtype, init=True)


def position_of_step(blocks: StepBlocks, step: Tensor) -> tuple[StepPosition, StepBlocks]:
    """Return the position of a step, and the blocks with its ancestors but without its values."""
    beam, capacity = blocks.beam, blocks.capacity
    beam_indices = tf.cast(tf.range(beam), blocks.ancestor.dtype)
    is_current = tf.equal(tf.range(capacity), step)                                        # [capacity]
    ancestor = tf.where(is_current, beam_indices[:, None], blocks.ancestor)  # [batch, beam, capacity]
    is_ancestor = tf.equal(ancestor[:, :, :, None], beam_indices)              # [batch, beam, capacity, beam]
    bias = tf.where(tf.reshape(is_ancestor, [-1, 1, beam, capacity * beam]), 0.0, MASKED)
    return StepPosition(step, beam, capacity, bias), blocks._replace(ancestor=ancestor)


def map_blocks(change: Callable[[StepBlocks], Any], blocks: Any) -> Any:
    """Apply a function to each `StepBlocks` in the `blocks` of a `DecoderState`."""
    if isinstance(blocks, StepBlocks):
        return change(blocks)
    return tuple(map_blocks(change, component) for component in blocks)


def _with_rows(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Return `x` `[n, size]` with the rows `rows`, int32 `[m]`, replaced by `values`.

    Search reads only the last version, so there the operation changes the memory in place; TensorFlow's other
    operations copy all of it.
    """
    if is_hoisting():
        return tf.raw_ops.InplaceUpdate(x=x, i=rows, v=values)
    return tf.tensor_scatter_nd_update(x, rows[:, None], values)


def _by_hypothesis(tensor: Tensor, beam: int) -> Tensor:
    """Reshape zeros `[batch, heads, capacity * beam, depth]` to `[batch * beam, heads, capacity, depth]`."""
    heads, depth = tensor.shape[1], tensor.shape[3]
    return tf.reshape(tensor, [-1, heads, tf.shape(tensor)[2] // beam, depth])


MASKED = -1e9
"""Added to the logits of positions that must not be attended to."""


class AttentionInputs(NamedTuple):
    """Inputs of an attention in addition to the sequence that it is applied to.

    Attributes:
        bias: float32, broadcast to `[batch, heads, length, length]`, added to the logits between positions of the
            sequence itself: `causal_bias` in a decoder, `padding_bias` in an encoder; None in a step of decoding, which
            may attend to every earlier position.
        source: result of `Attention.prepare`.
        source_bias: float32 `[batch, 1, 1, source length]`, the `padding_bias` of the source; None in an encoder.
        step_position: in a step of decoding, the `StepPosition` for attentions with `empty_values`; otherwise None.
    """

    bias: Tensor | None = None
    source: Nest = ()
    source_bias: Tensor | None = None
    step_position: Any = None


class Attended(NamedTuple):
    """Output and weights of an attention.

    Attributes:
        output: tensor of the shape of the input.
        weights: distribution over the source for each position of the input, float32 `[..., source length]`; None if
            it was not requested or the attention does not read the source.
    """

    output: Tensor
    weights: Tensor | None = None


class Attention(ABC):
    """A sublayer by which a position attends to positions of the same sequence or of the source.

    It is called within the variable scope `name`. It holds no tensors, and a new object is created for each use.

    Args:
        name: name of the variable scope, unique in the layer; names of variables in checkpoints contain it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, source: Tensor) -> Nest:
        """Return the data that attention needs of the source, such as keys and values, computed once per sentence.

        Args:
            source: output of the encoder, float32 `[batch, source length, depth]`.

        Returns:
            A nest of tensors whose first dimension is batch; empty by default.
        """
        return ()

    def empty_cache(self, rows: Tensor) -> Nest:
        """Return the empty cache of earlier positions.

        Args:
            rows: int32 `[]`, number of hypotheses.

        Returns:
            A nest of tensors whose first dimension is rows; the second may grow by one a step. Empty by default.
        """
        return ()

    def empty_values(self, batch: Tensor, beam: int) -> Any:
        """Return its memory in `StepBlocks`, which replaces the cache of an attention to all earlier positions.

        Args:
            batch: int32 `[]`, number of sentences.
            beam: number of hypotheses of each sentence.

        Returns:
            A nest of tensors from the function `empty_values`. Empty by default, and not called if it has a cache.
        """
        return ()

    @abstractmethod
    def attend_sequence(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        """Attend from all positions.

        Args:
            x: float32 `[batch, length, depth]`.
            inputs: further inputs.
            with_weights: also return the distribution over the source.
        """

    @abstractmethod
    def step(self, x: Tensor, cache: Nest, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Nest]:
        """Attend from the next position of each hypothesis.

        Args:
            x: float32 `[rows, depth]`; the rows of a sentence are adjacent.
            cache: result of `empty_cache` (or `empty_values`), or the cache of the previous step.
            inputs: further inputs.
            with_weights: also return the distribution over the source.

        Returns:
            Output `[rows, depth]` with weights `[rows, source length]`, and the new cache.
        """


def padding_bias(length: Tensor, longest: Tensor) -> Tensor:
    """Return float32 `[batch, 1, 1, longest]`: 0 at tokens, MASKED at padding; `length` is int32 `[batch]`."""
    mask = tf.cast(token_mask(length, longest), tf.float32)
    return ((1.0 - mask) * MASKED)[:, None, None, :]


def causal_bias(length: Tensor) -> Tensor:
    """Return float32 `[1, 1, length, length]`: 0 at and before each position, MASKED after it."""
    positions = count_to(length)
    is_later = tf.cast(positions[None, :] > positions[:, None], tf.float32)
    return (is_later * MASKED)[None, None]
