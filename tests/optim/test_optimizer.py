"""Optimizers and clipping, compared with the formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import SMALL_GRADIENT, StackedGradients
from towernmt.optim.optimizer import MAKERS, AveragingOptimizer, make_optimizer, updates_all_rows
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.optim.optimizers import LazyAdam, WholeVariableUpdates

START = [np.array([1.0, -2.0, 3.0], np.float32), np.array([[0.5, 4.0]], np.float32)]


def gradients_of(values: list[np.ndarray]) -> list[np.ndarray]:
    """Return the gradients of 0.5 * sum(x ** 2), which are x."""
    return [value.copy() for value in values]


def train(settings: OptimizerSettings, steps: int, clip_norm: float) -> list[np.ndarray]:
    with tf.Graph().as_default():
        variables = [tf1.get_variable(f"v{i}", initializer=value) for i, value in enumerate(START)]
        train_op = make_optimizer(settings, clip_norm).minimize(tf.add_n([tf.nn.l2_loss(v) for v in variables]))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op)
            return session.run(variables)


def clipped(gradients: list[np.ndarray], norm: float) -> list[np.ndarray]:
    length = np.sqrt(sum(float((g ** 2).sum()) for g in gradients))
    return [g * min(1.0, norm / length) for g in gradients] if norm else gradients


@pytest.mark.parametrize("clip", [0.0, 1.0, 100.0])
def test_adam_is_that_of_kingma_and_ba(clip):
    rate, b1, b2, epsilon = 0.1, 0.9, 0.98, 1e-9
    values = [value.astype(np.float64) for value in START]
    mean, square = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values]
    for t in range(1, 6):
        for i, g in enumerate(clipped(gradients_of(values), clip)):
            mean[i] = b1 * mean[i] + (1 - b1) * g
            square[i] = b2 * square[i] + (1 - b2) * g ** 2
            corrected = rate * np.sqrt(1 - b2 ** t) / (1 - b1 ** t)
            values[i] = values[i] - corrected * mean[i] / (np.sqrt(square[i]) + epsilon)
    trained = train(OptimizerSettings("adam", rate, b1, b2, epsilon), 5, clip)
    for a, b in zip(trained, values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_sgd_has_momentum(clip):
    values, speed = [v.astype(np.float64) for v in START], [np.zeros(3), np.zeros((1, 2))]
    for _ in range(4):
        for i, g in enumerate(clipped(gradients_of(values), clip)):
            speed[i] = 0.9 * speed[i] + g
            values[i] = values[i] - 0.1 * speed[i]
    trained = train(OptimizerSettings("sgd", 0.1, momentum=0.9), 4, clip)
    for a, b in zip(trained, values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_the_norm_that_is_measured_is_the_one_before_clipping():
    with tf.Graph().as_default() as graph:
        variables = [tf1.get_variable(f"v{i}", initializer=value) for i, value in enumerate(START)]
        make_optimizer(OptimizerSettings(), clip_norm=0.5).minimize(tf.add_n([tf.nn.l2_loss(v) for v in variables]))
        norm = next(op for op in graph.get_operations() if op.name.split("/")[-1] == "gradient_norm")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            expected = np.sqrt(sum((v ** 2).sum() for v in START))
            assert session.run(norm.outputs[0]) == pytest.approx(expected, rel=1e-6)


def test_an_unknown_optimizer_is_refused_with_those_that_exist():
    with pytest.raises(SettingsError, match=", ".join(MAKERS)):
        apply_overrides(OptimizerSettings(), {"name": "adamax"})


class SignDescent(WholeVariableUpdates, tf1.train.Optimizer):
    """A new optimizer, whose update of a variable depends only on the dense gradient."""


class LazyDescent(LazyAdam):
    """A new optimizer that skips rows without a gradient."""


def test_an_optimizer_of_complete_variables_needs_no_sparse_gradients(graph):
    assert updates_all_rows(AveragingOptimizer(SignDescent(False, "Sign"), 0.9))
    assert not updates_all_rows(LazyDescent(0.1, 0.9, 0.98, 1e-9))


@pytest.mark.parametrize("name", MAKERS)
def test_only_optimizers_with_sparse_updates_need_sparse_gradients(graph, name):
    assert updates_all_rows(make_optimizer(OptimizerSettings(name))) == (name not in ("lazyadam", "sgd"))


@pytest.mark.parametrize(("device", "stacks"), [("/gpu:0", 2), ("/cpu:0", 0)])
def test_small_gradients_of_equal_shape_share_kernels_on_a_gpu(graph, device, stacks):
    """The CPU executes the graph of a GPU."""
    random = np.random.default_rng(1)
    shapes = [[4], [3], [4], [2, 3], [4], [2, 3], [SMALL_GRADIENT + 1], [SMALL_GRADIENT + 1]]
    values = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    with tf1.device(device):
        gradients = [tf.constant(value) for value in values]
        gradients.append(tf.IndexedSlices(tf.constant(values[0]), tf.constant([1, 0, 3, 2]), tf.constant([9])))
        stacked = StackedGradients(gradients)
        norms, scaled = stacked.half_squared_norms(), stacked.scaled(tf.constant(0.5))
    operations = graph.get_operations()
    assert [operation.type for operation in operations].count("Pack") == stacks
    assert isinstance(scaled[-1], tf.IndexedSlices)
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        results = session.run([norms, [*scaled[:-1], scaled[-1].values]])
    for value, norm, half in zip([*values, values[0]], *results, strict=True):
        np.testing.assert_allclose(norm, (value.astype(np.float64) ** 2).sum() / 2, rtol=1e-5)
        np.testing.assert_array_equal(half, value / 2)
