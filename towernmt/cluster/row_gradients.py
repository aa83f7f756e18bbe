"""Gradients of embeddings summed over processes: the rows alone travel where that is less than the whole table."""

from __future__ import annotations

from collections.abc import Callable

from towernmt.cluster.tensorflow_world import CPU, TensorFlowWorld
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import GradsAndVars

SHARES = 4
"""Rows travel in packets of a fixed size, of which there are two: the larger one, and one this many times smaller."""


def packet_sizes(rows: int, processes: int) -> list[int]:
    """How many rows of a table a packet holds, ascending.

    With `rows / processes` rows from each process, what arrives is half of what the whole table takes in a ring.

    Args:
        rows: of the table.
        processes: in the world.
    """
    largest = max(1, rows // processes)
    return sorted({max(1, largest // SHARES), largest})


class RowGradients:
    """The sums over all processes of gradients that are some rows of a table each (`tf.IndexedSlices`).

    A collective of TensorFlow keeps the shape of its first run, and the rows that a batch touches differ in number. So
    the processes agree on the largest number, once an update for all tables, and gather packets that hold so many;
    the table is summed whole where none does.

    Args:
        gradients: the sparse gradients, each of float32 values `[n, ...]` and of indices `[n]`, which may repeat.
        world: the processes.
        wire: the dtype in which values travel. They are added in float32.
        sum_whole: the sum over the processes of dense gradients.
    """

    def __init__(self, gradients: GradsAndVars, world: TensorFlowWorld, wire: tf.DType,
                 sum_whole: Callable[[GradsAndVars], GradsAndVars]) -> None:
        self._world, self._wire, self._sum_whole = world, wire, sum_whole
        self._gradients = [(_distinct(gradient), variable) for gradient, variable in gradients]

    def sums(self) -> GradsAndVars:
        """For each gradient the sum over the processes, to the same bits in all: distinct rows."""
        if not self._gradients:
            return []
        with tf1.device(CPU):       # a GPU adds in any order
            return self._sums()

    def _sums(self) -> GradsAndVars:
        counts = tf.stack([tf.shape(gradient.indices)[0] for gradient, _ in self._gradients])
        largest = self._world.all_reduce(tf.cast(counts, tf.float32), "Max")
        return [(self._sum(gradient, variable.shape.as_list(), largest[at]), variable)
                for at, (gradient, variable) in enumerate(self._gradients)]

    def _sum(self, gradient: Tensor, shape: list[int], largest: Tensor) -> Tensor:
        sizes = packet_sizes(shape[0], self._world.processes)
        too_small = tf.reduce_sum(tf.cast(largest > tf.constant(sizes, tf.float32), tf.int32))
        ways = [lambda size=size: self._gathered(gradient, shape, size) for size in sizes]
        values, rows = tf.switch_case(too_small, [*ways, lambda: self._whole(gradient, shape)])
        values.set_shape([None, *shape[1:]])
        return tf.IndexedSlices(values, rows, tf.constant(shape, rows.dtype))

    def _gathered(self, gradient: Tensor, shape: list[int], size: int) -> tuple[Tensor, Tensor]:
        """By packets of `size` rows, of which those that are left over have the index -1."""
        missing = size - tf.shape(gradient.indices)[0]
        indices = tf.pad(tf.cast(gradient.indices, tf.int32), [[0, missing]], constant_values=-1)
        values = tf.pad(tf.cast(gradient.values, self._wire), [[0, missing], *[[0, 0]] * (len(shape) - 1)])
        indices.set_shape([size])
        values.set_shape([size, *shape[1:]])
        everyones = self._world.all_gather(indices)
        used = everyones >= 0
        received = tf.cast(tf.boolean_mask(self._world.all_gather(values), used), tf.float32)
        sums = _distinct(tf.IndexedSlices(received, tf.boolean_mask(everyones, used)))
        return sums.values, tf.cast(sums.indices, tf.int64)

    def _whole(self, gradient: Tensor, shape: list[int]) -> tuple[Tensor, Tensor]:
        """By the whole table, and a number for each row that says whether it was touched."""
        touched = tf.math.unsorted_segment_sum(tf.ones_like(gradient.indices, tf.float32), gradient.indices, shape[0])
        table = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
        (table, _), (touched, _) = self._sum_whole([(table, table), (touched, touched)])
        rows = tf.where(touched > 0.0)[:, 0]
        return tf.gather(table, rows), rows


def _distinct(gradient: Tensor) -> Tensor:
    rows, place = tf.unique(gradient.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(gradient.values, place, tf.shape(rows)[0]), rows)
