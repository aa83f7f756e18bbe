"""Muon, compared with NumPy: singular value decompositions for the directions, and the formulas for the steps."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from towernmt.core.graph_state import graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.muon import Muon, orthogonal

STEPS = 4
RATE, MOMENTUM, SCALE, DECAY = 0.02, 0.9, 0.3, 0.1
SHAPES = {"a/kernel": (6, 4), "b/kernel": (4, 6), "c/kernel": (4, 6), "packed/kernel": (4, 12),
          "convolution/kernel": (3, 4, 6), "embedding": (5, 4), "softmax/kernel": (4, 5), "bias": (4,)}
MAPS = {"packed/kernel": 3, "convolution/kernel": 2}
HIDDEN = [name for name in SHAPES if name.endswith("kernel") and "softmax" not in name]


def drawn(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}


POLYNOMIALS = ((8.287212, -23.595887, 17.300387), (4.107059, -2.947850, 0.544843), (3.948691, -2.908902, 0.551819))
"""The first polynomials of Amsel et al. (2025)."""


def polar_express(x: np.ndarray) -> np.ndarray:
    """Return the result of three steps on a matrix in float64, computed on its singular values."""
    u, values, v = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    values = values / math.sqrt((values ** 2).sum())
    for a, b, c in POLYNOMIALS:
        values = values / 1.01
        values = a * values + b * values ** 3 + c * values ** 5
    return u * values @ v


def muon_steps(name: str, gradients: list[np.ndarray], interval: int = 1) -> np.ndarray:
    value, momentum = drawn(1)[name].astype(np.float64), 0.0
    for number, gradient in enumerate(gradients):
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
        if number % interval == 0:
            direction = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
        parts = np.split(direction.reshape(-1, direction.shape[-1]), MAPS.get(name, 1), axis=1)
        steps = [SCALE * math.sqrt(max(part.shape)) * polar_express(part) for part in parts]
        value = value - RATE * (np.concatenate(steps, 1).reshape(value.shape) + DECAY * value)
    return value


def adamw_steps(name: str, gradients: list[np.ndarray]) -> np.ndarray:
    value, m, v = drawn(1)[name].astype(np.float64), 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        m, v = 0.8 * m + 0.2 * gradient, 0.95 * v + 0.05 * gradient ** 2
        decay = DECAY * value if value.ndim > 1 else 0.0
        value = value - RATE * (m / (1 - 0.8 ** t) / (np.sqrt(v / (1 - 0.95 ** t)) + 1e-6) + decay)
    return value


def make_muon(dtype=tf.float32, interval: int = 1) -> Muon:
    return Muon(RATE, DECAY, 0.8, 0.95, 1e-6, MOMENTUM, SCALE, interval=interval, dtype=dtype)


def train(optimizer, conditional: bool = False) -> tuple[dict[str, np.ndarray], set[str], int]:
    """Return the variables after STEPS updates, the names of all variables, and the global step."""
    variables = {name: tf1.get_variable(name, initializer=value) for name, value in drawn(1).items()}
    graph_state().maps_in_kernel.update(MAPS)
    fed = {name: tf1.placeholder(tf.float32, shape) for name, shape in SHAPES.items()}
    count = tf1.train.get_or_create_global_step()

    def update() -> tf.Operation:
        return optimizer.apply_gradients([(fed[name], variables[name]) for name in SHAPES], count)

    train_op = tf.cond(tf1.placeholder_with_default(True, []), lambda: tf.group(update()), tf.no_op) \
        if conditional else update()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(STEPS):
            session.run(train_op, {fed[name]: value for name, value in drawn(10 + step).items()})
        values, counted = session.run([variables, count])
    return values, {v.op.name for v in tf1.global_variables()}, int(counted)


@pytest.mark.parametrize("conditional, interval", [(False, 1), (True, 1), (False, 2), (True, 3)])
def test_hidden_matrices_make_muons_steps_and_the_others_adams(graph, conditional, interval):
    values, _, counted = train(make_muon(interval=interval), conditional)
    gradients = [drawn(10 + step) for step in range(STEPS)]
    assert counted == STEPS
    for name in SHAPES:
        gradients_of_name = [g[name] for g in gradients]
        if name in HIDDEN:
            expected = muon_steps(name, gradients_of_name, interval)
        else:
            expected = adamw_steps(name, gradients_of_name)
        np.testing.assert_allclose(values[name], expected, rtol=2e-4, atol=2e-5,
                                   err_msg=name)


@pytest.mark.parametrize("interval", [1, 2])
def test_all_matrices_of_a_shape_share_the_products_of_a_direction(graph, interval):
    """Products of small matrices are slow alone, so a layer more adds no product to an update."""

    def products(kernels: int, maps: int) -> int:
        with tf.Graph().as_default() as one:
            variables = [tf1.get_variable(f"{number}/kernel", [6, 4 * maps]) for number in range(kernels)]
            graph_state().maps_in_kernel.update({variable.op.name: maps for variable in variables})
            make_muon(interval=interval).apply_gradients([(tf.ones([6, 4 * maps]), v) for v in variables])
            functions = one.as_graph_def().library.function       # the branches of a conditional direction
            nodes = [*one.as_graph_def().node, *(node for function in functions for node in function.node_def)]
        return sum("MatMul" in node.op for node in nodes)

    assert products(1, 1) > 0
    assert products(8, 1) == products(2, 4) == products(1, 1)


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_a_repeated_direction_changes_no_weight_before_the_towers_have_read_it(graph, decay):
    """A tower may read a weight late, as a compiled tower does, which first waits for its batch."""
    variable = tf1.get_variable("a/kernel", initializer=drawn(1)["a/kernel"])
    late = tf.numpy_function(lambda: (time.sleep(0.2), np.float32(0.0))[1], [], tf.float32)
    with tf1.control_dependencies([late]):
        gradient = tf.identity(variable.read_value())       # the weight that the tower has read
    update = Muon(RATE, decay, 0.8, 0.95, 1e-6, interval=2).apply_gradients([(gradient, variable)])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(4):
            before = session.run(variable)
            read, _ = session.run([gradient, update])
            np.testing.assert_array_equal(read, before)
            assert not np.array_equal(session.run(variable), before)


def test_slots_have_the_names_by_which_checkpoints_keep_them(graph):
    names = train(make_muon())[1]
    slots = {name for name in names if name not in SHAPES and name.rsplit("/", 1)[0] in SHAPES}
    assert slots == ({f"{name}/Muon" for name in HIDDEN}
                     | {f"{name}/{slot}" for name in SHAPES if name not in HIDDEN for slot in ("Adam", "Adam_1")})
    assert {"beta1_power", "beta2_power"} <= names


def test_hidden_matrices_alone_can_be_trained(graph):
    variable = tf1.get_variable("a/kernel", initializer=drawn(1)["a/kernel"])
    update = make_muon().apply_gradients([(tf.ones([6, 4]), variable)])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(update)
        assert not np.allclose(session.run(variable), drawn(1)["a/kernel"])
    assert {v.op.name for v in tf1.global_variables()} == {"a/kernel", "a/kernel/Muon"}


@pytest.mark.parametrize("shape", [(8, 8), (32, 8), (8, 32), (1, 5), (5, 1)])
@pytest.mark.parametrize("dtype, tolerance", [(tf.float32, 1e-4), (tf.bfloat16, 0.2)])
@pytest.mark.parametrize("iterations, least, most", [
    (3, 0.18, 1.87), (4, 0.43, 1.57), (5, 0.86, 1.13), (9, 0.99, 1.01)])
def test_a_direction_keeps_its_singular_vectors_and_gets_singular_values_near_one(
        graph, shape, dtype, tolerance, iterations, least, most):
    matrices = np.random.default_rng(3).normal(0, 100.0, (2, *shape)).astype(np.float32)
    with tf1.Session() as session:
        results = session.run(orthogonal(tf.constant(matrices), iterations, dtype))
    for x, y in zip(matrices, results, strict=True):
        u, _, v = np.linalg.svd(x, full_matrices=False)
        inside = u.T @ y @ v.T
        assert np.abs(inside - np.diag(np.diag(inside))).max() < tolerance
        assert np.diag(inside).min() > least - tolerance and np.diag(inside).max() < most + tolerance
        np.testing.assert_allclose(u @ inside @ v, y, atol=tolerance)


def test_a_gradient_of_zeros_makes_no_step_and_nothing_that_is_not_a_number(graph):
    with tf1.Session() as session:
        assert np.array_equal(session.run(orthogonal(tf.zeros([2, 3, 4]))), np.zeros((2, 3, 4)))
