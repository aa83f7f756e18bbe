"""Sums of gradients over the GPUs of one process by collective operations, in buckets, during the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.gpus import has_nccl
from towernmt.core.tensors import DType, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World
from towernmt.models.kernels import compute_dtype
from towernmt.optim.gradients import GradientReducer, GradsAndVars, SumOverTowers

COLLECTIVES = ("auto", "nccl", "ring", "sum")
"""Values of `train.collectives`."""
BUCKET_BYTES = 25 << 20
"""Size at which gradients are sent together, as in PyTorch's DistributedDataParallel."""
GROUP = 1
"""TensorFlow's key of the group of all towers."""


def chosen_transport(collectives: str, devices: Sequence[str], reducer: GradientReducer, world: World
                     ) -> str | None:
    """Return how the towers of a process sum their gradients: "nccl", "ring", or None to add on the first device.

    Args:
        collectives: the value of `train.collectives`.
        devices: the devices of the towers.
        reducer: the reducer of the trainer; only `SumOverTowers` can be replaced by collectives.
        world: the processes; in several processes, gradients are added on the first device before they are sent.

    Raises:
        SettingsError: NCCL is requested and missing.
    """
    if collectives not in COLLECTIVES:
        raise SettingsError(f"train.collectives={collectives} is unknown: choose {', '.join(COLLECTIVES)}.")
    on_gpus = len(devices) > 1 and len({*devices}) == len(devices) and all("gpu" in device for device in devices)
    if not on_gpus or collectives == "sum" or world.processes > 1 or type(reducer) is not SumOverTowers:
        return None
    if collectives == "ring":
        return "ring"
    if has_nccl():
        return "nccl"
    if collectives == "nccl":
        raise SettingsError("train.collectives=nccl: libnccl.so.2 was not found; pip install 'towernmt[gpu]' installs "
                            "it. Set train.collectives=ring to sum gradients by copies between GPUs.")
    logger.warning("NCCL's library libnccl.so.2 was not found, so the first GPU sends all weights to the others in "
                   "each step, and adds their gradients. pip install 'towernmt[gpu]' installs it; "
                   "train.collectives=ring needs no NCCL.")
    return None


class Collectives:
    """All-reduce of gradients by NCCL, or by TensorFlow's ring of copies between GPUs (Patarasuk and Yuan 2009).

    Gradients are sent in buckets, in the order in which the backward pass computes them. Each GPU sends and receives
    2 (N - 1) / N times the size of the gradients. If products are computed in bfloat16, gradients are sent in bfloat16
    and added in float32.

    Args:
        devices: the device of each tower.
        transport: "nccl" or "ring".
    """

    def __init__(self, devices: Sequence[str], transport: str) -> None:
        self._devices, self._transport = list(devices), transport
        self._order: list[int] = []
        self._keys = itertools.count(1)

    def order_by_backward_pass(self, gradients: GradsAndVars) -> None:
        """Send gradients in the order in which the backward pass of the first tower computes them.

        Args:
            gradients: the gradients of the first tower, from its backward pass.
        """
        operations = tf1.get_default_graph().get_operations()
        index_of = {operation.name: index for index, operation in enumerate(operations)}
        self._order = sorted(range(len(gradients)), key=lambda i: index_of[gradients[i][0].op.name])

    def sums(self, towers: Sequence[GradsAndVars], with_rows: bool) -> list[GradsAndVars]:
        """Return the sum of the gradients over all towers, on each tower's device.

        Args:
            towers: gradients of each tower, with the same variables in the same order.
            with_rows: whether the sum of sparse gradients is sparse.
        """
        wire = tf.bfloat16 if compute_dtype() == tf.bfloat16 else None
        parts = []
        for tower, gradients in enumerate(towers):
            with tf1.device(self._devices[tower]), tf1.name_scope("all_reduce"):
                parts.append([_parts(gradients[i][0], gradients[i][1], with_rows, wire) for i in self._order])
        shapes = [[int(part.shape.num_elements()) for part in of_gradient] for of_gradient in parts[0]]
        sums = self._reduced([[part for of_gradient in tower for part in of_gradient] for tower in parts])
        results: list[GradsAndVars] = []
        for tower, gradients in enumerate(towers):
            flat = iter(sums[tower])
            tower_sums: dict[int, Tensor] = {}
            with tf1.device(self._devices[tower]), tf1.name_scope("all_reduce"):
                for i, lengths in zip(self._order, shapes, strict=True):
                    table, *touched = itertools.islice(flat, len(lengths))
                    tower_sums[i] = _gradient(table, touched, gradients[i][1])
            results.append([(tower_sums[i], variable) for i, (_, variable) in enumerate(gradients)])
        return results

    def _reduced(self, towers: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the sums over the towers of flat tensors, in buckets.

        On each device, a bucket waits for the one before, so that the order is the same on all devices.
        """
        results: list[list[Tensor]] = [[] for _ in towers]
        totals: list[Tensor] = []
        buckets = list(_buckets(towers[0], BUCKET_BYTES))
        for bucket in buckets:
            sum_bucket = self._sum_bfloat16 if towers[0][bucket.start].dtype == tf.bfloat16 else self._sum
            totals = sum_bucket([tensors[bucket] for tensors in towers], totals)
            if bucket is buckets[-1]:
                # A run that fetches only the first tower's sums would otherwise wait for the others for ever.
                with tf1.device(self._devices[0]), tf1.control_dependencies(totals[1:]):
                    totals[0] = tf.identity(totals[0])
            for device, total, tensors, result in zip(self._devices, totals, towers, results, strict=True):
                lengths = [int(part.shape[0]) for part in tensors[bucket]]
                with tf1.device(device), tf1.name_scope("all_reduce"):
                    padding = int(total.shape[0]) - sum(lengths)
                    is_split = len(lengths) > 1 or padding
                    result += tf.split(total, [*lengths, padding])[:len(lengths)] if is_split else [total]
        return results

    def _sum(self, bucket: list[list[Tensor]], before: list[Tensor]) -> list[Tensor]:
        """Return the sum of a bucket on each device, after the tensors `before` of the devices."""
        joined = []
        for device, parts in zip(self._devices, bucket, strict=True):
            with tf1.device(device), tf1.name_scope("all_reduce"):
                joined.append(parts[0] if len(parts) == 1 else tf.concat(parts, 0))
        return self._collective(tf.raw_ops.CollectiveReduceV2, joined, before, merge_op="Add", final_op="Id")

    def _sum_bfloat16(self, bucket: list[list[Tensor]], before: list[Tensor]) -> list[Tensor]:
        """Return the float32 sum of a bfloat16 bucket on each device, padded with zeros to a multiple of the devices.

        TensorFlow 2.21 lets NCCL read bfloat16 as float32. So the devices exchange the bits as float16: each device
        receives one chunk from all devices, adds it in float32, and sends the sum to all. This transfers as many bytes
        as NCCL's sum.
        """
        size, devices = sum(int(part.shape[0]) for part in bucket[0]), len(bucket)
        chunk = -(-size // devices)
        chunks = []
        for device, parts in zip(self._devices, bucket, strict=True):
            with tf1.device(device), tf1.name_scope("all_reduce"):
                filled = tf.concat([*parts, tf.zeros([chunk * devices - size], tf.bfloat16)], 0)
                chunks.append(tf.bitcast(tf.reshape(filled, [devices, chunk]), tf.float16))
        sums = []
        for device, received in zip(
                self._devices, self._collective(tf.raw_ops.CollectiveAllToAllV2, chunks, before), strict=True):
            with tf1.device(device), tf1.name_scope("all_reduce"):
                received.set_shape([devices, chunk])
                total = tf.reduce_sum(tf.cast(tf.bitcast(received, tf.bfloat16), tf.float32), 0)
                sums.append(tf.bitcast(tf.cast(total, tf.bfloat16), tf.float16))
        totals = []
        for device, total in zip(self._devices, self._collective(tf.raw_ops.CollectiveGatherV2, sums, []), strict=True):
            with tf1.device(device), tf1.name_scope("all_reduce"):
                total.set_shape([devices * chunk])
                totals.append(tf.cast(tf.bitcast(total, tf.bfloat16), tf.float32))
        return totals

    def _collective(self, operation: Callable[..., Tensor], inputs: Sequence[Tensor], before: Sequence[Tensor],
                    **options: str) -> list[Tensor]:
        """Return the output of a collective operation on each device, after the tensors `before` of the devices."""
        key, outputs = next(self._keys), []
        for tower, (device, tensor) in enumerate(zip(self._devices, inputs, strict=True)):
            with tf1.device(device), tf1.name_scope("all_reduce"), tf1.control_dependencies(before[tower:tower + 1]):
                outputs.append(operation(
                    input=tensor, group_size=len(inputs), group_key=GROUP, instance_key=key, ordering_token=[],
                    communication_hint=self._transport, **options))
        return outputs


def _parts(gradient: Tensor, variable: Variable, with_rows: bool, wire: DType | None) -> list[Tensor]:
    """Return a gradient as a flat tensor; for one that stays sparse, also the number of gradients of each row."""
    parts = [tf.convert_to_tensor(gradient)]
    if with_rows and isinstance(gradient, tf.IndexedSlices):
        parts.append(tf.math.unsorted_segment_sum(tf.ones_like(gradient.indices, gradient.dtype), gradient.indices,
                                                  variable.shape[0]))
    return [_wire_form(part, variable.shape if index == 0 else variable.shape[:1], wire)
            for index, part in enumerate(parts)]


def _wire_form(tensor: Tensor, shape: Any, wire: DType | None) -> Tensor:
    if wire is not None and tensor.dtype == tf.float32:
        # Send a gradient that was computed in that dtype without casting it to float32 and back.
        narrow = tensor.op.type == "Cast" and tensor.op.inputs[0].dtype == wire
        tensor = tensor.op.inputs[0] if narrow else tf.cast(tensor, wire)
    return tf.reshape(tensor, [int(shape.num_elements())])


def _gradient(table: Tensor, touched: list[Tensor], variable: Variable) -> Tensor:
    """Return a gradient from its flat sum; a sparse one if the number of gradients of each row is known."""
    dense = tf.cast(tf.reshape(table, variable.shape), variable.dtype.base_dtype)
    if not touched:
        return dense
    rows = tf.where(touched[0] > 0)[:, 0]
    return tf.IndexedSlices(tf.gather(dense, rows), rows, tf.constant(variable.shape.as_list(), rows.dtype))


def _buckets(tensors: Sequence[Tensor], largest: int) -> Iterator[slice]:
    """Yield ranges of adjacent tensors of one dtype; a range ends when it has at least `largest` bytes."""
    begin, size = 0, 0
    for end, tensor in enumerate(tensors, 1):
        size += int(tensor.shape[0]) * tensor.dtype.size
        if end == len(tensors) or size >= largest or tensors[end].dtype != tensor.dtype:
            yield slice(begin, end)
            begin, size = end, 0
