"""Room for what each step of decoding writes: it stays where it was written, whatever hypotheses become of it.

A cache that grows by `tf.concat`, and whose rows search takes at each step, is copied as a whole several times a step.
Here a step writes the keys and values of all hypotheses of a sentence at its own place, search leaves them there, and
keeps a small number instead: from which place of the beam each live hypothesis came at each step. By these a
hypothesis sees, among all that was written for its sentence, its own ancestors alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels.once import is_made_once
from towernmt.models.layers.attention import MASKED

BLOCK = 16
"""Steps for which room is made at a time."""
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
        """Hypotheses of a sentence, which may see each other's ancestors."""
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
        """Each hypothesis goes on from the one at place `parent`, int32 `[batch, beam]`, of its sentence."""
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
        """The static shapes that they keep in a loop that makes room."""
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
    """`x` `[n, size]` with `new` in place of some rows, int32 `[m]`.

    Search looks at what was written before in its last form alone, so there the memory itself is changed; TensorFlow's
    other operations copy all of it.
    """
    if is_made_once():
        return tf.raw_ops.InplaceUpdate(x=x, i=rows, v=new)
    return tf.tensor_scatter_nd_update(x, rows[:, None], new)


def _by_hypothesis(tensor: Tensor, beam: int) -> Tensor:
    """`[batch, heads, room * beam, depth]` of zeros as `[batch * beam, heads, room, depth]`."""
    heads, depth = tensor.shape[1], tensor.shape[3]
    return tf.reshape(tensor, [-1, heads, tf.shape(tensor)[2] // beam, depth])
