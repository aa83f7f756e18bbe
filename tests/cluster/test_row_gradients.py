"""Rows of embeddings summed over processes, by packets and by the complete table, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from towernmt.cluster.all_reduce import AllReduce, packet_sizes
from towernmt.cluster.tensorflow_world import TensorFlowWorld
from towernmt.core.tf_compat import tf, tf1

ROWS, DEPTH = 40, 3


class Beside(TensorFlowWorld):
    """Worker 0 of two, with the other worker's values for each collective, in the order of their creation."""

    def __init__(self, of_other: list[np.ndarray]) -> None:
        self.process, self.processes, self._of_other = 0, 2, of_other
        self.made: list[tuple[str, list[int]]] = []

    def all_reduce(self, value: Any, operation: str = "Add", gpu: str = "") -> Any:
        other = self._others("reduced", value)
        return tf.maximum(value, other) if operation == "Max" else value + other

    def all_gather(self, value: Any) -> Any:
        return tf.concat([value, self._others("gathered", value)], 0)

    def _others(self, how: str, value: Any) -> Any:
        self.made.append((how, value.shape.as_list()))
        found = next(other for other in self._of_other if list(other.shape) == value.shape.as_list())
        return tf.cast(tf.constant(found), value.dtype)


def slices(rows: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(rows, np.int64), np.random.default_rng(seed).integers(-8, 8, [len(rows), DEPTH]).astype(np.float32)


def table_of(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    table = np.zeros([ROWS, DEPTH], np.float32)
    np.add.at(table, rows, values)
    return table


def packet(rows: np.ndarray, values: np.ndarray, size: int) -> list[np.ndarray]:
    """Return the packet of the other worker: distinct rows and their sums, padded to `size`."""
    distinct = np.unique(rows)
    indices, filled = np.full(size, -1, np.int32), np.zeros([size, DEPTH], np.float32)
    indices[:len(distinct)], filled[:len(distinct)] = distinct, table_of(rows, values)[distinct]
    return [indices, filled]


def test_packets_hold_no_more_than_a_share_of_the_table() -> None:
    assert packet_sizes(40, 2) == [5, 20]
    assert packet_sizes(32000, 64) == [125, 500]
    assert packet_sizes(2, 3) == [1]


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("mine, others", [
    ([1, 7, 1], [7, 39]), ([0], [0]), ([4, 4, 4, 4, 4, 4, 4], [3]), ([], [5]),      # small packets
    (list(range(6)), [30]), ([2], list(range(20))),                                 # large ones
    (list(range(21)), [39]), (list(range(ROWS)), list(range(ROWS)))])               # the table
def test_the_sum_has_the_rows_that_any_process_touched(
        graph: Any, wire: str, mine: list[int], others: list[int]) -> None:
    rows, values = slices(mine, 1)
    other_rows, other_values = slices(others, 2)
    touched = np.bincount(np.unique(other_rows), minlength=ROWS).astype(np.float32)
    whole = np.concatenate([touched, table_of(other_rows, other_values).ravel()])
    small = packet(other_rows, other_values, 5) if len(set(others)) <= 5 else [np.zeros(5), np.zeros([5, DEPTH])]
    large = packet(other_rows, other_values, 20) if len(set(others)) <= 20 else [np.zeros(20), np.zeros([20, DEPTH])]
    world = Beside([np.array([float(len(set(others)))]), *small, *large, whole])
    table = tf1.get_variable("table", [ROWS, DEPTH])
    gradient = tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64), tf.constant([ROWS, DEPTH]))
    ((total, variable),) = AllReduce(wire).reduce([[(gradient, table)]], world)
    with tf1.Session() as session:
        summed_rows, sums = session.run([total.indices, total.values])
    assert variable is table
    assert sorted(summed_rows) == sorted({*mine, *others})
    assert np.array_equal(table_of(summed_rows, sums), table_of(rows, values) + table_of(other_rows, other_values))


def test_dense_gradients_stay_in_their_places_among_sparse_ones(graph: Any) -> None:
    table, weight, bias = (tf1.get_variable(name, shape) for name, shape in (
        ("table", [ROWS, DEPTH]), ("weight", [2, 2]), ("bias", [2])))
    gradient = tf.IndexedSlices(tf.ones([1, DEPTH]), tf.constant([3], tf.int64), tf.constant([ROWS, DEPTH]))
    world = Beside([np.array([1.0]), *(array for size in (5, 20) for array in (
        np.full(size, -1, np.int32), np.zeros([size, DEPTH]))), np.zeros(ROWS * (DEPTH + 1)), np.arange(6.0)])
    reduced = AllReduce().reduce([[(tf.ones([2, 2]), weight), (gradient, table), (tf.ones([2]), bias)]], world)
    assert [variable for _, variable in reduced] == [weight, table, bias]
    with tf1.Session() as session:
        of_weight, _, of_bias = session.run([tf.convert_to_tensor(gradient) for gradient, _ in reduced])
    assert (of_bias.tolist(), of_weight.tolist()) == ([1, 2], [[3, 4], [5, 6]])
