"""A hook that feeds `learning_rate:0` sets the rate of that very step, with every optimizer."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import FeedInput
from tensorpack.train import ModelDesc, launch_train_with_config

from towernmt.callbacks import CheckpointSaver, HookToCallback, separate_runs
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import constant
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import set_precision
from towernmt.optim import OptimizerSettings
from towernmt.optim.optimizer import MAKERS, make_optimizer
from towernmt.train import SyncMultiGPUTrainer, TrainConfig


class LearningRateSetterHook(tf1.train.SessionRunHook):
    """The example of the tutorials on TensorFlow's hooks."""

    def __init__(self, rates):
        self.rates = rates

    def begin(self):
        self._global_step_tensor = tf1.train.get_or_create_global_step()
        self._lrn_rate_tensor = tf1.get_default_graph().get_tensor_by_name("learning_rate:0")
        self._lrn_rate = self.rates[0]

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._global_step_tensor, feed_dict={self._lrn_rate_tensor: self._lrn_rate})

    def after_run(self, run_context, run_values):
        self.rates = self.rates[1:] or self.rates
        self._lrn_rate = self.rates[0]


class Slope(ModelDesc):
    """Loss w * x: gradient descent subtracts the rate from w in each step."""

    def inputs(self):
        return [tf.TensorSpec([], tf.float32, "x")]

    def build_graph(self, x):
        return tf.multiply(tf1.get_variable("w", [], initializer=tf1.zeros_initializer()), x, name="loss")

    def optimizer(self):
        return make_optimizer(OptimizerSettings(name="sgd", momentum=0.0, learning_rate=0.5))


class Weights(Callback):
    def _before_train(self):
        self.rates = [0.0]

    def _trigger_step(self):
        self.rates.append(float(self.trainer.sess.run("w/Read/ReadVariableOp:0")))


@pytest.mark.parametrize("schedule", [[], [LearningRateSchedule(constant(0.25))]])
def test_the_hook_of_the_tutorials_sets_the_rate_of_each_step(tmp_path, schedule):
    def ones():
        while True:
            yield [np.float32(1)]

    weights = Weights()
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(
            Slope(), FeedInput(DataFromGenerator(ones)), steps_per_epoch=4, max_epoch=1, monitors=[],
            callbacks=[HookToCallback(LearningRateSetterHook([0.1, 0.01, 4.0])), *schedule, CheckpointSaver(tmp_path),
                       weights]), SyncMultiGPUTrainer(towers=1))
    np.testing.assert_allclose(-np.diff(weights.rates), [0.1, 0.01, 4.0, 4.0], rtol=1e-5)
    saved = tf.train.load_checkpoint(str(CheckpointSaver(tmp_path).latest() / "model"))
    assert saved.get_tensor("learning_rate") == pytest.approx(0.25 if schedule else 0.5)     # under its name, unfed


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_optimizer_reads_the_tensor_that_is_fed(graph, name, precision):
    set_precision(precision)
    tf1.train.get_or_create_global_step()
    w = tf1.get_variable("w", [3, 2], initializer=tf1.ones_initializer())
    optimizer = make_optimizer(OptimizerSettings(name=name, weight_decay=0.0, ema_decay=0.9), clip_norm=1.0)
    step = optimizer.apply_gradients(optimizer.compute_gradients(tf.reduce_sum(w * w), [w]))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(step, {"learning_rate:0": 0.0})
        np.testing.assert_array_equal(session.run(w), 1.0)
        session.run(step, {"learning_rate:0": 0.1})
        assert np.all(session.run(w) < 0.999)


def test_feeding_the_handle_of_a_variable_is_refused_in_one_sentence(graph):
    rate = tf1.get_variable("learning_rate", initializer=1.0, use_resource=True)
    hooks = separate_runs([LearningRateSetterHook([0.1])])
    value = rate.read_value()
    with pytest.raises(SettingsError, match="LearningRateSetterHook feeds 'learning_rate:0'.*use_resource=False"):
        with tf1.train.MonitoredSession(hooks=hooks) as session:
            session.run(value)
