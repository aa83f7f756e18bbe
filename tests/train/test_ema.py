"""The moving average of the weights: its values, its names, and towers and translators that use it."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.common import get_global_step_var

from towernmt.errors import CheckpointError
from towernmt.tf_compat import tf, tf1
from towernmt.train.ema import RestoreAverages, averaged_weights, averages
from towernmt.train.optimizer import OptimizerSettings, make_optimizer


def line() -> tuple:
    """A weight that falls by 0.1 in each step."""
    weight = tf1.get_variable("scope/weight", initializer=np.array([3.0, 5.0], np.float32))
    settings = OptimizerSettings("sgd", learning_rate=0.1, momentum=0.0, ema_decay=0.7)
    step = get_global_step_var()
    train_op = make_optimizer(settings).minimize(tf.reduce_sum(weight))
    with tf1.control_dependencies([train_op]):
        return weight, step.assign_add(1).op


def test_the_average_follows_the_weight_with_its_decay_and_sooner_at_first(graph):
    weight, train_op = line()
    expected = value = np.array([3.0, 5.0])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for t in range(25):
            session.run(train_op)
            value = value - 0.1
            decay = min(0.7, (1 + t) / (10 + t))
            expected = decay * expected + (1 - decay) * value
            found, = session.run(list(averages().values()))
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(session.run(weight), value, rtol=1e-5)


def test_a_tower_built_on_the_averages_reads_them_and_makes_no_variable(graph):
    weight, train_op = line()
    before = {v.op.name for v in tf1.global_variables()}
    assert "scope/weight/ExponentialMovingAverage" in before
    with averaged_weights(), tf1.variable_scope("scope"):
        averaged = tf.identity(tf1.get_variable("weight", [2]))
        with pytest.raises(ValueError, match="does not exist"):
            tf1.get_variable("another", [2])
    with tf1.variable_scope("scope", reuse=True):
        assert tf1.get_variable("weight", [2]) is weight
    assert {v.op.name for v in tf1.global_variables()} == before
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        found, raw, average = session.run([averaged, weight, averages()["scope/weight"]])
    assert np.array_equal(found, average) and not np.array_equal(found, raw)


def save(directory, averaged: bool) -> dict[str, np.ndarray]:
    with tf.Graph().as_default():
        if averaged:
            _, train_op = line()
        else:
            weight = tf1.get_variable("scope/weight", initializer=np.array([3.0, 5.0], np.float32))
            train_op = weight.assign_sub([1.0, 1.0]).op
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            tf1.train.Saver().save(session, str(directory / "model"), write_meta_graph=False)
            return session.run({v.op.name: v for v in tf1.global_variables()})


@pytest.mark.parametrize("averaged", [True, False])
def test_restoring_takes_the_average_where_there_is_one(tmp_path, averaged):
    saved = save(tmp_path, averaged)
    with tf.Graph().as_default(), tf1.variable_scope("scope"):
        weight = tf1.get_variable("weight", [2])
        init = RestoreAverages(tmp_path / "model")
        init._setup_graph()
        with tf1.Session() as session:
            init._run_init(session)
            found = session.run(weight)
    name = "scope/weight/ExponentialMovingAverage" if averaged else "scope/weight"
    assert np.array_equal(found, saved[name])


def test_a_variable_that_the_checkpoint_lacks_is_an_error_all_the_same(tmp_path, graph):
    save(tmp_path, True)
    with graph.as_default():
        tf1.get_variable("another", [2])
        with pytest.raises(CheckpointError, match="another"):
            RestoreAverages(tmp_path / "model")._setup_graph()
