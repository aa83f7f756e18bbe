"""Gradients in buckets keep their order; the sum over processes is compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from towernmt.cluster.all_reduce import AllReduce, bucket_length
from towernmt.cluster.joining import worker_differences
from towernmt.cluster.tensorflow_world import TensorFlowWorld
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1


class Mirrored(TensorFlowWorld):
    """A world whose other processes have the same values as this one."""

    def __init__(self, processes: int) -> None:
        self.process, self.processes, self.lengths = 0, processes, []

    def all_reduce(self, value: Any, operation: str = "Add", gpu: str = "") -> Any:
        self.lengths.append(int(value.shape[0]))
        return value * tf.cast(self.processes, value.dtype)


SHAPES: list[list[int]] = [[3, 5], [], [40], [2, 2, 2]]


@pytest.mark.parametrize("wire, bucket_bytes, lengths", [
    ("float32", 1 << 20, [64]), ("float32", 80, [16] * 4), ("float32", 100, [22, 22, 20]), ("bfloat16", 64, [32, 32])])
def test_each_gradient_comes_back_in_its_place(graph: Any, wire: str, bucket_bytes: int, lengths: list[int]) -> None:
    world, draw = Mirrored(3), np.random.default_rng(1)
    values = [draw.integers(-9, 9, shape).astype(np.float32) for shape in SHAPES]
    variables = [tf1.get_variable(f"v{i}", shape) for i, shape in enumerate(SHAPES)]
    pairs = [(tf.constant(value), variable) for value, variable in zip(values, variables, strict=True)]
    reduced = AllReduce(wire, bucket_bytes=bucket_bytes).reduce([pairs], world)
    with tf1.Session() as session:
        sums = session.run([gradient for gradient, _ in reduced])
    assert [variable.name for _, variable in reduced] == [variable.name for variable in variables]
    for value, total in zip(values, sums, strict=True):
        assert np.array_equal(total, 3 * value)
    assert world.lengths == lengths


@pytest.mark.parametrize("total, largest, length", [(10, 100, 10), (10, 5, 5), (11, 5, 4), (1, 5, 1), (0, 5, 1)])
def test_buckets_are_even(total: int, largest: int, length: int) -> None:
    assert bucket_length(total, largest) == length


def test_another_way_to_travel_is_refused() -> None:
    with pytest.raises(SettingsError, match="float32 or bfloat16"):
        AllReduce("int8")
    with pytest.raises(SettingsError, match="ring or nccl"):
        AllReduce(transport="mpi")
    with pytest.raises(SettingsError, match="TensorFlow cannot add bfloat16 by NCCL"):
        AllReduce("bfloat16", "nccl")


class Described(TensorFlowWorld):
    """Worker 0 of two, without a server: for graphs that are not run."""

    def __init__(self) -> None:
        self.process, self.processes, self.timeout, self._keys = 0, 2, 9.0, 0


def test_nccl_sums_on_the_gpu_of_the_gradients_one_bucket_after_the_other(graph: Any) -> None:
    variables = [tf1.get_variable(f"v{i}", [8]) for i in range(3)]
    with tf1.device("/gpu:1"):
        pairs = [(tf.zeros([8]), variable) for variable in variables]
    AllReduce(transport="nccl", bucket_bytes=32).reduce([pairs], Described())
    reductions = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    assert [op.device for op in reductions] == ["/device:GPU:1"] * 3
    assert {(op.get_attr("communication_hint"), op.inputs[2].op.get_attr("value").int_val[0]) for op in reductions} == {
        (b"nccl", 2)}
    assert [op.inputs[0].op.control_inputs for op in reductions] == [[], [reductions[0]], [reductions[1]]]


def test_nccl_without_a_gpu_is_refused(graph: Any) -> None:
    with pytest.raises(SettingsError, match="train.transport=ring"):
        AllReduce(transport="nccl").reduce([[(tf.zeros([8]), tf1.get_variable("v", [8]))]], Described())


def test_what_differs_is_named_with_both_values() -> None:
    assert worker_differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}, 2) == [
        "b is 3 in worker 2 and 2 in worker 0", "c is 4 in worker 2 and (nothing) in worker 0"]
