"""The statistics of dropout, and initial values that depend only on seed and name."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.core.errors import TowerRuleError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.layers.randomness import StatelessNormal, StatelessUniform, dropout, set_seed, start_clock


def draw(rate: float, shape: tuple[int, ...], names: tuple[str, ...] = ("place",), clock: int = 0) -> list[np.ndarray]:
    with tf.Graph().as_default(), TrainTowerContext(""):
        start_clock(tf.constant(0))
        outputs = [dropout(tf.ones(shape), rate, name) for name in names]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            tf1.global_variables()[0].load(clock, session)
            return session.run(outputs)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_the_rate_and_keeps_the_mean(rate):
    (x,) = draw(rate, (400, 501))
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs((x == 0).mean() - rate) < 5 * deviation
    assert set(np.unique(x)) == {np.float32(0), x.max()}
    assert x.max() == pytest.approx(1 / (1 - rate), rel=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_passes_through_kept_elements_with_their_scale(dtype):
    with tf.Graph().as_default(), TrainTowerContext(""):
        start_clock(tf.constant(0))
        x = tf.ones((40, 50), dtype)
        y = dropout(x, 0.25, "place")
        dy = np.arange(2000, dtype=np.float32).reshape(40, 50) % 128
        (dx,) = tf1.gradients(y, x, grad_ys=tf.constant(dy))
        assert y.dtype == tf.float32 and dx.dtype == dtype
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            y, dx = session.run([y, tf.cast(dx, tf.float32)])
    assert 0.6 < (y != 0).mean() < 0.9
    np.testing.assert_allclose(dx, y * dy, rtol=2 ** -8)


def test_a_training_tower_without_a_clock_is_refused():
    with tf.Graph().as_default(), TrainTowerContext(""), pytest.raises(
            TowerRuleError, match=r"begin build_graph with start_clock\(TENSOR\)"):
        dropout(tf.ones((2, 3)), 0.5, "place")


def test_neighbouring_draws_are_independent():
    """Two draws share 32 random bits; rows, columns and lags must be uncorrelated."""
    (x,) = draw(0.5, (600, 600))
    centred = (x > 0).astype(np.float64) - 0.5
    flat = centred.ravel()
    for lag in (1, 2, 3, 4, 8, 600):
        assert abs(np.mean(flat[:-lag] * flat[lag:])) < 5 * 0.25 / np.sqrt(flat.size)


@pytest.mark.parametrize("clocks, names", [((0, 1), ("a", "a")), ((7, 8), ("a", "a")), ((3, 3), ("a", "b"))])
def test_draws_of_two_steps_or_places_are_independent_and_not_one_another_moved(clocks, names):
    draws = [draw(0.5, (40000,), (name,), clock)[0] for clock, name in zip(clocks, names, strict=True)]
    first, second = ((x > 0) - 0.5 for x in draws)
    for lag in range(-64, 65):
        a, b = (first[lag:], second[:len(second) - lag]) if lag >= 0 else (first[:lag], second[-lag:])
        assert abs(np.mean(a * b)) < 5 * 0.25 / np.sqrt(len(a)), lag


@pytest.mark.parametrize("shape", [(1,), (3,), (0, 5), (2, 3, 5)])
def test_any_shape_is_drawn(shape):
    assert draw(0.5, shape)[0].shape == shape


def test_places_and_clock_give_different_draws_and_the_same_ones_repeat():
    first, second = draw(0.5, (64,), ("a", "b"))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, draw(0.5, (64,), ("a",))[0])
    assert not np.array_equal(first, draw(0.5, (64,), ("a",), clock=1)[0])


def test_dropout_is_the_identity_in_a_tower_that_predicts(graph):
    x = tf.ones([4])
    with PredictTowerContext(""):
        assert dropout(x, 0.5, "place") is x


def initial(seed: int, before: int) -> list[np.ndarray]:
    with tf.Graph().as_default():
        set_seed(seed)
        for _ in range(before):
            tf.constant(0)      # other operations in the graph must not matter
        with tf1.variable_scope("scope"):
            variables = [tf1.get_variable("a", [50, 60], initializer=StatelessUniform(0.3, "a")),
                         tf1.get_variable("b", [50, 60], initializer=StatelessNormal(0.3, "b")),
                         tf1.get_variable("c", [50, 60], initializer=StatelessUniform(0.3, "c"))]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return session.run(variables)


def test_initial_values_depend_on_seed_and_name_alone():
    a, b, c = initial(1, before=0)
    again = initial(1, before=7)
    assert all(np.array_equal(x, y) for x, y in zip((a, b, c), again, strict=True))
    assert not np.array_equal(a, c) and not np.array_equal(a, initial(2, before=0)[0])
    assert abs(a).max() <= 0.3 and a.std() == pytest.approx(0.3 / np.sqrt(3), rel=0.05)
    assert b.std() == pytest.approx(0.3, rel=0.05) and abs(b.mean()) < 0.02


def test_a_model_with_tensorflows_own_initial_values_builds_under_op_determinism(graph):
    tf.config.experimental.enable_op_determinism()
    set_seed(3)
    variable = tf1.get_variable("theirs", [2, 2])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert np.isfinite(session.run(variable)).all()
