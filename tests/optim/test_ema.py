"""The moving average of the weights: its values, its names, and towers and translators that use it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFlow
from tensorpack.tfutils.common import get_global_step_var
from tensorpack.tfutils.tower import TrainTowerContext
from tensorpack.train.interface import launch_train_with_config
from tensorpack.train.model_desc import ModelDesc

from tests.variables import assign
from towernmt.callbacks.stopping import StopAtStep
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.core.errors import CheckpointError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.optim.optimizer import averaged_weights, averages, make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.predict.search.decoding_tower import build_search_predictor
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


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
            average, = session.run(list(averages().values()))
            np.testing.assert_allclose(average, expected, rtol=1e-5)
        np.testing.assert_allclose(session.run(weight), value, rtol=1e-5)


class Ones(DataFlow):
    """An endless sequence of equal batches."""

    def __iter__(self):
        while True:
            yield [np.ones([4], np.float32)]


class FallingWeight(ModelDesc):
    """A weight that falls by 1 in each step."""

    def inputs(self):
        return [tf.TensorSpec((None,), tf.float32, "x")]

    def build_graph(self, x):
        return tf1.get_variable("weight", initializer=8.0) * tf.reduce_mean(x)

    def optimizer(self):
        return make_optimizer(OptimizerSettings("sgd", learning_rate=1.0, momentum=0.0, ema_decay=0.9999))


class Values(Callback):
    """Records the average after each step, and the operations that each read of the step waits for."""

    def __init__(self):
        self.averages = []

    def _setup_graph(self):
        self._average = averages()["weight"]
        self.waits_for_count = [
            any(before.type == "AssignAddVariableOp" for before in operation.control_inputs)
            for operation in self.graph.get_operations()
            if operation.type == "ReadVariableOp" and operation.inputs[0].op.name == "global_step"
            and "ExponentialMovingAverage" in operation.name]

    def _trigger_step(self):
        self.averages.append(self.trainer.sess.run(self._average))


@pytest.mark.parametrize("towers, update_cycle", [(1, 1), (2, 2)])
def test_in_a_trainer_the_decay_follows_the_step_of_the_update_for_any_timing_of_threads(
        graph, towers, update_cycle):
    values = Values()
    config = TrainConfig(FallingWeight(), GeneralQueueInput(Ones()), update_cycle=update_cycle, monitors=[],
                         callbacks=[values, StopAtStep(6)])
    launch_train_with_config(config, SyncMultiGPUTrainer(towers=towers, update_cycle=update_cycle))
    assert values.waits_for_count == [True] * update_cycle      # of an update cycle, also at the end of the data
    average, expected = 8.0, []
    for t in range(1, 7):
        decay = (1 + t) / (10 + t)
        average = decay * average + (1 - decay) * (8.0 - t)
        expected.append(average)
    np.testing.assert_allclose(values.averages, expected, rtol=1e-5)


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
        averaged_value, raw, average = session.run([averaged, weight, averages()["scope/weight"]])
    assert np.array_equal(averaged_value, average) and not np.array_equal(averaged_value, raw)


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
        init = RestoreCheckpoint(tmp_path / "model", averaged=True)
        init._setup_graph()
        with tf1.Session() as session:
            init._run_init(session)
            restored = session.run(weight)
    name = "scope/weight/ExponentialMovingAverage" if averaged else "scope/weight"
    assert np.array_equal(restored, saved[name])


def test_a_variable_that_the_checkpoint_lacks_is_an_error_all_the_same(tmp_path, graph):
    save(tmp_path, True)
    with graph.as_default():
        tf1.get_variable("another", [2])
        with pytest.raises(CheckpointError, match="another"):
            RestoreCheckpoint(tmp_path / "model", averaged=True)._setup_graph()


@pytest.mark.thorough
def test_search_in_the_training_session_reads_the_averages_or_the_weights_as_set(graph):
    model = Transformer(TransformerSettings(
        hidden_size=16, filter_size=16, heads=2, encoder_layers=1, decoder_layers=1, source_vocab_size=12,
        target_vocab_size=12))
    model.make_optimizer = partial(make_optimizer, OptimizerSettings(ema_decay=0.9))
    with TrainTowerContext(""):
        cost = model.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()])
    model.optimizer().minimize(cost)
    by_average, by_weight = (build_search_predictor(model, SearchSettings(beam_size=3, averaged=averaged))
                             for averaged in (True, False))
    source = np.array([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0]], np.int32), np.array([5, 3], np.int32)
    random = np.random.default_rng(1)
    first, second = ({v.op.name: random.normal(0, 0.5, v.shape) for v in tf1.trainable_variables()} for _ in range(2))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for predictor in (by_average, by_weight):
            predictor.set_session(session)
        for weights, averaged in ((first, second), (second, first)):
            assign(session, {**weights, **{averages()[name].op.name: value for name, value in averaged.items()}})
            if weights is first:
                expected = by_average(*source), by_weight(*source)
        results = by_weight(*source), by_average(*source)
    for (tokens, scores), (expected_tokens, expected_scores) in zip(results, expected, strict=True):
        assert np.array_equal(tokens, expected_tokens)
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-6)
    assert not np.allclose(results[0][1], results[1][1])
