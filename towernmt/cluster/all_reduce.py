"""Gradients summed over processes by all-reduce, in even buckets."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.cluster.row_gradients import RowGradients
from towernmt.cluster.tensorflow_world import TensorFlowWorld
from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World
from towernmt.optim.gradients import GradientReducer, GradsAndVars, sum_over_towers

BUCKET_BYTES = 4 << 20


class AllReduce(GradientReducer):
    """The sum over all processes, in a ring (Patarasuk and Yuan 2009): each sends and gets about twice its gradients.

    Large gradients are split, small ones packed, into buckets of equal size; a bucket is sent as soon as its gradients
    are there, while the backward pass computes others. Of gradients of embeddings the rows alone travel where that is
    less (`RowGradients`); NCCL sums whole tables.

    Args:
        wire: how numbers travel, and are added: float32, or bfloat16 for half the bytes and 8 bits of precision.
        transport: "ring", between the processors' memories; or "nccl", between GPUs. NCCL wants its collectives in the
            same order everywhere, so a bucket waits for the one before. It has been run on no GPU yet.
        bucket_bytes: of the largest bucket.
    Raises:
        SettingsError: another `wire` or `transport`; NCCL without GPUs.
    """

    def __init__(self, wire: str = "float32", transport: str = "ring", bucket_bytes: int = BUCKET_BYTES) -> None:
        if wire not in ("float32", "bfloat16"):
            raise SettingsError(f"Gradients cannot travel as {wire}: choose float32 or bfloat16.")
        if transport not in ("ring", "nccl"):
            raise SettingsError(f"Gradients cannot travel by {transport}: choose ring or nccl.")
        self._wire, self._bucket_bytes, self._by_nccl = tf.as_dtype(wire), bucket_bytes, transport == "nccl"

    def reduce(self, towers: Sequence[GradsAndVars], world: World) -> GradsAndVars:
        gradients = sum_over_towers(towers)
        if not isinstance(world, TensorFlowWorld):
            return gradients
        with tf1.name_scope("all_reduce"):
            if self._by_nccl:
                return self._sums_by_nccl(gradients, world)
            sparse = [pair for pair in gradients if isinstance(pair[0], tf.IndexedSlices)]
            dense = [pair for pair in gradients if not isinstance(pair[0], tf.IndexedSlices)]
            sums = [*self._sums(dense, world),
                    *RowGradients(sparse, world, self._wire, lambda whole: self._sums(whole, world)).sums()]
        by_variable = {variable.ref(): (gradient, variable) for gradient, variable in sums}
        return [by_variable[variable.ref()] for _, variable in gradients]

    def _sums(self, gradients: GradsAndVars, world: TensorFlowWorld) -> GradsAndVars:
        backwards = gradients[::-1]     # about in the order in which the backward pass computes them
        return _unpacked([world.all_reduce(bucket) for bucket in self._buckets(backwards)], backwards)[::-1]

    def _sums_by_nccl(self, gradients: GradsAndVars, world: TensorFlowWorld) -> GradsAndVars:
        backwards, gpu = gradients[::-1], _gpu_of(gradients)
        with tf1.device(gpu):
            sums: list[Tensor] = []
            for bucket in self._buckets(backwards):
                with tf1.control_dependencies(sums[-1:]):
                    in_turn = tf.identity(bucket)
                sums.append(world.all_reduce(in_turn, gpu=gpu))
            return _unpacked(sums, backwards)[::-1]

    def total(self, number: Tensor, world: World) -> Tensor:
        if not isinstance(world, TensorFlowWorld):
            return number
        return tf.reshape(world.all_reduce(tf.reshape(number, [1])), [])

    def _buckets(self, gradients: GradsAndVars) -> list[Tensor]:
        """All gradients behind each other, cut into buckets of equal length."""
        sizes = [_size(variable) for _, variable in gradients]
        length = bucket_length(sum(sizes), self._bucket_bytes // self._wire.size)
        buckets: list[Tensor] = []
        parts: list[Tensor] = []
        room = length
        for (gradient, _), size in zip(gradients, sizes, strict=True):
            flat, taken = tf.cast(tf.reshape(tf.convert_to_tensor(gradient), [size]), self._wire), 0
            while taken < size:
                count = min(room, size - taken)
                parts.append(flat if count == size else flat[taken:taken + count])
                taken, room = taken + count, room - count
                if room == 0:
                    buckets.append(_joined(parts))
                    parts, room = [], length
        return [*buckets, _joined(parts)] if parts else buckets


def _gpu_of(gradients: GradsAndVars) -> str:
    devices = {gradient.device for gradient, _ in gradients if "gpu" in gradient.device.lower()}
    if not devices:
        raise SettingsError("train.transport=nccl sums gradients on GPUs, and the towers of this worker have none: "
                            "pass --gpu, or set train.transport=ring.")
    return min(devices)


def bucket_length(total: int, largest: int) -> int:
    """The least length of so few buckets as hold `total` numbers, `largest` at most in each."""
    count = max(1, -(-total // max(1, largest)))
    return max(1, -(-total // count))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _unpacked(buckets: list[Tensor], gradients: GradsAndVars) -> GradsAndVars:
    pieces: list[tuple[Tensor, int]] = [(bucket, int(bucket.shape[0])) for bucket in buckets]
    sums: GradsAndVars = []
    at, used = 0, 0
    for _, variable in gradients:
        parts, missing = [], _size(variable)
        while missing:
            bucket, length = pieces[at]
            count = min(missing, length - used)
            parts.append(bucket[used:used + count])
            missing, used = missing - count, used + count
            if used == length:
                at, used = at + 1, 0
        sums.append((tf.cast(tf.reshape(_joined(parts), variable.shape), variable.dtype.base_dtype), variable))
    return sums


def _size(variable: Variable) -> int:
    return int(variable.shape.num_elements())
