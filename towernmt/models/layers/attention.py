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
from towernmt.models.kernels import is_made_once

BLOCK = 16
"""Number of steps by which the buffers grow."""
_NONE = -1


class StepBlocks(NamedTuple):
    """What the steps so far have written, with room for some more.

    Attributes:
        kept: nest of tensors `[batch, heads, room * beam, depth]`: what hypothesis `b` of a sentence wrote in step `s`
            is at `s * beam + b`, and behind it is room. Search moves nothing in it.
        ancestor: int32 `[batch, beam, room]`: the place in the beam that each hypothesis had in each step; -1 for
            steps that are not taken yet.
    """

    kept: Any
    ancestor: Tensor

    @property
    def beam(self) -> int:
        """Number of hypotheses of a sentence."""
        return int(self.ancestor.shape[1])

    @property
    def room(self) -> Tensor:
        """Steps that it has room for, int32 `[]`."""
        return tf.shape(self.ancestor)[2]

    def apart(self) -> StepBlocks:
        """For hypotheses that never take each other's place: each as if it were the only one of a sentence.

        Only before the first step.
        """
        beam = self.beam
        kept = tf.nest.map_structure(lambda tensor: _by_hypothesis(tensor, beam), self.kept)
        return StepBlocks(kept, tf.reshape(self.ancestor, [-1, 1, self.room]))

    def reordered(self, parent: Tensor) -> StepBlocks:
        """Return blocks in which each hypothesis continues the one with beam index `parent`, int32 `[batch, beam]`."""
        return self._replace(ancestor=tf.gather(self.ancestor, parent, batch_dims=1))

    def of_sentences(self, rows: Tensor) -> StepBlocks:
        """That of the sentences `rows`, int32 `[n]`, alone."""
        return StepBlocks(*tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tuple(self)))

    def with_room(self, steps: Tensor) -> StepBlocks:
        """With room for so many steps, int32 `[]`, which are not fewer than before."""
        more = steps - self.room
        kept = tf.nest.map_structure(
            lambda tensor: tf.pad(tensor, [[0, 0], [0, 0], [0, more * self.beam], [0, 0]]), self.kept)
        return StepBlocks(kept, tf.pad(self.ancestor, [[0, 0], [0, 0], [0, more]], constant_values=_NONE))

    def shapes(self) -> StepBlocks:
        """Return the static shapes in a loop that increases the capacity."""
        return tf.nest.map_structure(
            lambda tensor: tf.TensorShape([*tensor.shape[:2], None, *tensor.shape[3:]]), self)


class StepPlace(NamedTuple):
    """Where a step of decoding writes in `StepBlocks`, and what each hypothesis sees there.

    Attributes:
        step: int32 `[]`, the number of steps before.
        beam: hypotheses of a sentence in the blocks.
        room: int32 `[]`, steps that the blocks have room for.
        bias: float32 `[batch, 1, beam, room * beam]`: 0 for itself and its ancestors, `MASKED` for all else.
    """

    step: Tensor
    beam: int
    room: Tensor
    bias: Tensor

    def written(self, kept: Tensor, new: Tensor) -> Tensor:
        """`kept` with what the step adds to it.

        Args:
            kept: `[batch, heads, room * beam, depth]`.
            new: `[batch, heads, beam, depth]`.
        """
        heads, size = kept.shape[1], self.beam * kept.shape[3]
        rows = tf.range(tf.shape(self.bias)[0] * heads) * self.room + self.step
        by_step = _with_rows(tf.reshape(kept, [-1, size]), rows, tf.reshape(new, [-1, size]))
        return tf.reshape(by_step, tf.stack([-1, heads, self.room * self.beam, kept.shape[3]]))


def empty_blocks(kept: Any, batch: Tensor, beam: int) -> StepBlocks:
    """Before the first step.

    Args:
        kept: see `empty_places`.
    """
    return StepBlocks(kept, tf.fill([batch, beam, BLOCK], _NONE))


def empty_places(batch: Tensor, beam: int, heads: int, depth: int, dtype: Any) -> Tensor:
    """Room for a vector of `depth` a head and hypothesis, `[batch, heads, BLOCK * beam, depth]`.

    Memory of its own: equal constants of a graph become one, which must not happen to what is written in place.
    """
    return tf.raw_ops.Empty(shape=tf.stack([batch, heads, BLOCK * beam, depth]), dtype=dtype, init=True)


def place_of_step(blocks: StepBlocks, step: Tensor) -> tuple[StepPlace, StepBlocks]:
    """Where a step writes, and the blocks with the step noted; what it writes is not in them yet."""
    beam, room = blocks.beam, blocks.room
    own = tf.range(beam)
    now = tf.equal(tf.range(room), step)                                        # [room]
    ancestor = tf.where(now, own[:, None], blocks.ancestor)                     # [batch, beam, room]
    seen = tf.equal(ancestor[:, :, :, None], own)                               # [batch, beam, room, beam]
    bias = tf.where(tf.reshape(seen, [-1, 1, beam, room * beam]), 0.0, MASKED)
    return StepPlace(step, beam, room, bias), blocks._replace(ancestor=ancestor)


def each_of(change: Callable[[StepBlocks], Any], blocks: Any) -> Any:
    """`blocks` of a `DecoderState` with a change made to each of them: one, none, or those of several models."""
    if isinstance(blocks, StepBlocks):
        return change(blocks)
    return tuple(each_of(change, each) for each in blocks)


def _with_rows(x: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """Return `x` `[n, size]` with the rows `rows`, int32 `[m]`, replaced by `new`.

    Search reads only the last version, so there the operation changes the memory in place; TensorFlow's other
    operations copy all of it.
    """
    if is_made_once():
        return tf.raw_ops.InplaceUpdate(x=x, i=rows, v=new)
    return tf.tensor_scatter_nd_update(x, rows[:, None], new)


def _by_hypothesis(tensor: Tensor, beam: int) -> Tensor:
    """Reshape zeros `[batch, heads, capacity * beam, depth]` to `[batch * beam, heads, capacity, depth]`."""
    heads, depth = tensor.shape[1], tensor.shape[3]
    return tf.reshape(tensor, [-1, heads, tf.shape(tensor)[2] // beam, depth])


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
    """Output and weights of an attention.

    Attributes:
        output: tensor of the shape of the input.
        weights: distribution over the source for each position of the input, float32 `[..., source length]`; None if
            it was not requested or the attention does not read the source.
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

    def empty_places(self, batch: Tensor, beam: int) -> Any:
        """Its room in `StepBlocks`, in place of a cache, for one that keeps a vector of each earlier position.

        Args:
            batch: int32 `[]`, the number of sentences.
            beam: hypotheses of each.
        Returns:
            a nest of tensors from `empty_places`. Empty by default, and not asked for if it has a cache.
        """
        return ()

    @abstractmethod
    def whole(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
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
            cache: result of `empty_cache` (or `empty_places`), or the cache of the previous step.
            inputs: further inputs.
            with_weights: also return the distribution over the source.

        Returns:
            Output `[rows, depth]` with weights `[rows, source length]`, and the new cache.
        """


def padding_bias(length: Tensor, longest: Tensor) -> Tensor:
    """Return float32 `[batch, 1, 1, longest]`: 0 at tokens, MASKED at padding; `length` is int32 `[batch]`."""
    mask = tf.sequence_mask(length, longest, dtype=tf.float32)
    return ((1.0 - mask) * MASKED)[:, None, None, :]


def causal_bias(length: Tensor) -> Tensor:
    """Return float32 `[1, 1, length, length]`: 0 at and before each position, MASKED after it."""
    positions = tf.range(length)
    later = tf.cast(positions[None, :] > positions[:, None], tf.float32)
    return (later * MASKED)[None, None]
