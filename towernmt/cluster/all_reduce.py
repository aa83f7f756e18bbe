"""Sum gradients over processes: dense gradients by all-reduce in equal buckets, those of embeddings by rows.

Of an embedding's gradient, only the rows are sent if that is less than the complete table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from towernmt.cluster.tensorflow_world import CPU, TensorFlowWorld
from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World
from towernmt.optim.gradients import GradientReducer, GradsAndVars, sum_over_towers

BUCKET_BYTES = 4 << 20


class AllReduce(GradientReducer):
    """The sum over all processes by ring all-reduce (Patarasuk and Yuan 2009).

    Each process sends and receives about twice the size of its gradients. Large gradients are split and small ones
    packed into buckets of equal size. A bucket is sent as soon as its gradients are computed, while the backward pass
    continues. For embeddings, only the rows of gradients are sent if that is less (`RowGradients`); NCCL sums complete
    tables.

    Args:
        wire: the dtype in which numbers are sent and added: float32, or bfloat16 for half the bytes and 8 bits of
            precision.
        transport: "ring", between the memories of the hosts; or "nccl", between GPUs. NCCL needs the same order of
            collectives in all processes, so a bucket waits for the previous one. It has not been tested on GPUs.
        bucket_bytes: maximum size of a bucket.

    Raises:
        SettingsError: `wire` or `transport` is unknown, they exclude each other, or NCCL is requested without GPUs.
    """

    def __init__(self, wire: str = "float32", transport: str = "ring", bucket_bytes: int = BUCKET_BYTES) -> None:
        if wire not in ("float32", "bfloat16"):
            raise SettingsError(f"Gradients cannot be sent as {wire}: choose float32 or bfloat16.")
        if transport not in ("ring", "nccl"):
            raise SettingsError(f"Gradients cannot be sent by {transport}: choose ring or nccl.")
        if (wire, transport) == ("bfloat16", "nccl"):
            raise SettingsError("train.wire=bfloat16: TensorFlow cannot add bfloat16 by NCCL. Set train.wire=float32 "
                                "or train.transport=ring.")
        self._wire, self._bucket_bytes, self._uses_nccl = tf.as_dtype(wire), bucket_bytes, transport == "nccl"

    def reduce(self, towers: Sequence[GradsAndVars], world: World) -> GradsAndVars:
        gradients = sum_over_towers(towers)
        if not isinstance(world, TensorFlowWorld):
            return gradients
        with tf1.name_scope("all_reduce"):
            if self._uses_nccl:
                return self._reduce_by_nccl(gradients, world)
            sparse = [pair for pair in gradients if isinstance(pair[0], tf.IndexedSlices)]
            dense = [pair for pair in gradients if not isinstance(pair[0], tf.IndexedSlices)]
            sums = [*self._reduce_dense(dense, world),
                    *RowGradients(sparse, world, self._wire, lambda dense: self._reduce_dense(dense, world)).sums()]
        by_variable = {variable.ref(): (gradient, variable) for gradient, variable in sums}
        return [by_variable[variable.ref()] for _, variable in gradients]

    def _reduce_dense(self, gradients: GradsAndVars, world: TensorFlowWorld) -> GradsAndVars:
        backwards = gradients[::-1]     # approximately the order of the backward pass
        return _unpack_buckets([world.all_reduce(bucket) for bucket in self._buckets(backwards)], backwards)[::-1]

    def _reduce_by_nccl(self, gradients: GradsAndVars, world: TensorFlowWorld) -> GradsAndVars:
        backwards, gpu = gradients[::-1], _first_gpu(gradients)
        with tf1.device(gpu):
            sums: list[Tensor] = []
            for bucket in self._buckets(backwards):
                with tf1.control_dependencies(sums[-1:]):
                    ordered = tf.identity(bucket)
                sums.append(world.all_reduce(ordered, gpu=gpu))
            return _unpack_buckets(sums, backwards)[::-1]

    def total(self, number: Tensor, world: World) -> Tensor:
        if not isinstance(world, TensorFlowWorld):
            return number
        return tf.reshape(world.all_reduce(tf.reshape(number, [1])), [])

    def _buckets(self, gradients: GradsAndVars) -> list[Tensor]:
        """Concatenate all gradients, and split them into buckets of equal length."""
        sizes = [_size(variable) for _, variable in gradients]
        length = bucket_length(sum(sizes), self._bucket_bytes // self._wire.size)
        buckets: list[Tensor] = []
        parts: list[Tensor] = []
        free = length
        for (gradient, _), size in zip(gradients, sizes, strict=True):
            flat, used = tf.cast(tf.reshape(tf.convert_to_tensor(gradient), [size]), self._wire), 0
            while used < size:
                count = min(free, size - used)
                parts.append(flat if count == size else flat[used:used + count])
                used, free = used + count, free - count
                if free == 0:
                    buckets.append(_concatenate(parts))
                    parts, free = [], length
        return [*buckets, _concatenate(parts)] if parts else buckets


def _first_gpu(gradients: GradsAndVars) -> str:
    devices = {gradient.device for gradient, _ in gradients if "gpu" in gradient.device.lower()}
    if not devices:
        raise SettingsError("train.transport=nccl sums gradients on GPUs, but the towers of this worker are on the "
                            "CPU: pass --gpu, or set train.transport=ring.")
    return min(devices)


def bucket_length(total: int, largest: int) -> int:
    """Return the smallest length of equal buckets for `total` numbers, with the fewest buckets of at most `largest`."""
    count = max(1, -(-total // max(1, largest)))
    return max(1, -(-total // count))


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _unpack_buckets(buckets: list[Tensor], gradients: GradsAndVars) -> GradsAndVars:
    """Return the gradients that were concatenated into buckets, with the shapes and dtypes of their variables."""
    lengths = [int(bucket.shape[0]) for bucket in buckets]
    sums: GradsAndVars = []
    index, start = 0, 0
    for _, variable in gradients:
        parts, remaining = [], _size(variable)
        while remaining:
            count = min(remaining, lengths[index] - start)
            parts.append(buckets[index][start:start + count])
            remaining, start = remaining - count, start + count
            if start == lengths[index]:
                index, start = index + 1, 0
        sums.append((tf.cast(tf.reshape(_concatenate(parts), variable.shape), variable.dtype.base_dtype), variable))
    return sums


def _size(variable: Variable) -> int:
    return int(variable.shape.num_elements())


PACKET_RATIO = 4
"""Ratio of the two fixed sizes of packets in which rows are sent."""


def packet_sizes(rows: int, processes: int) -> list[int]:
    """Return the numbers of rows of the two packet sizes, in ascending order.

    With `rows / processes` rows from each process, a process receives half of the data of the complete table in a ring.

    Args:
        rows: number of rows in the table.
        processes: number of processes in the world.
    """
    largest = max(1, rows // processes)
    return sorted({max(1, largest // PACKET_RATIO), largest})


class RowGradients:
    """The sums over all processes of sparse gradients, each of which contains some rows of a table.

    A TensorFlow collective keeps the shape of its first run, but batches touch different numbers of rows. So once per
    update the processes agree on the largest number for each table, and gather packets of a sufficient size. If no
    packet is large enough, the complete table is summed.

    Args:
        gradients: the sparse gradients (`tf.IndexedSlices`) with values float32 `[n, ...]` and indices `[n]`, which may
            repeat.
        world: the processes.
        wire: the dtype in which values are sent; they are added in float32.
        sum_dense: returns the sums over the processes of dense gradients.
    """

    def __init__(self, gradients: GradsAndVars, world: TensorFlowWorld, wire: tf.DType,
                 sum_dense: Callable[[GradsAndVars], GradsAndVars]) -> None:
        self._world, self._wire, self._sum_dense = world, wire, sum_dense
        self._gradients = [(_sum_repeated_rows(gradient), variable) for gradient, variable in gradients]

    def sums(self) -> GradsAndVars:
        """Return the sum of each gradient over the processes, as distinct rows with the same bits in all processes."""
        if not self._gradients:
            return []
        with tf1.device(CPU):       # the order of additions on a GPU varies
            return self._sum_all()

    def _sum_all(self) -> GradsAndVars:
        counts = tf.stack([tf.shape(gradient.indices)[0] for gradient, _ in self._gradients])
        largest = self._world.all_reduce(tf.cast(counts, tf.float32), "Max")
        return [(self._sum_rows(gradient, variable.shape.as_list(), largest[index]), variable)
                for index, (gradient, variable) in enumerate(self._gradients)]

    def _sum_rows(self, gradient: Tensor, shape: list[int], largest: Tensor) -> Tensor:
        """Return the sum of a gradient over the processes.

        Args:
            gradient: `tf.IndexedSlices` with distinct rows.
            shape: shape of the table.
            largest: float32 scalar, the largest number of rows of a process.
        """
        sizes = packet_sizes(shape[0], self._world.processes)
        too_small = tf.reduce_sum(tf.cast(largest > tf.constant(sizes, tf.float32), tf.int32))
        branches = [lambda size=size: self._sum_by_packets(gradient, shape, size) for size in sizes]
        values, rows = tf.switch_case(too_small, [*branches, lambda: self._sum_by_table(gradient, shape)])
        values.set_shape([None, *shape[1:]])
        return tf.IndexedSlices(values, rows, tf.constant(shape, rows.dtype))

    def _sum_by_packets(self, gradient: Tensor, shape: list[int], size: int) -> tuple[Tensor, Tensor]:
        """Return the sum by packets of `size` rows, in which unused rows have the index -1."""
        missing = size - tf.shape(gradient.indices)[0]
        indices = tf.pad(tf.cast(gradient.indices, tf.int32), [[0, missing]], constant_values=-1)
        values = tf.pad(tf.cast(gradient.values, self._wire), [[0, missing], *[[0, 0]] * (len(shape) - 1)])
        indices.set_shape([size])
        values.set_shape([size, *shape[1:]])
        gathered = self._world.all_gather(indices)
        used = gathered >= 0
        received = tf.cast(tf.boolean_mask(self._world.all_gather(values), used), tf.float32)
        sums = _sum_repeated_rows(tf.IndexedSlices(received, tf.boolean_mask(gathered, used)))
        return sums.values, tf.cast(sums.indices, tf.int64)

    def _sum_by_table(self, gradient: Tensor, shape: list[int]) -> tuple[Tensor, Tensor]:
        """Return the sum by the complete table, with a count for each row of the gradients that touch it."""
        touched = tf.math.unsorted_segment_sum(tf.ones_like(gradient.indices, tf.float32), gradient.indices, shape[0])
        table = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
        (table, _), (touched, _) = self._sum_dense([(table, table), (touched, touched)])
        rows = tf.where(touched > 0.0)[:, 0]
        return tf.gather(table, rows), rows


def _sum_repeated_rows(gradient: Tensor) -> Tensor:
    """Return `tf.IndexedSlices` in which each index occurs once, with the sum of its rows."""
    rows, positions = tf.unique(gradient.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(gradient.values, positions, tf.shape(rows)[0]), rows)
