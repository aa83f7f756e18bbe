"""Tensors that users look up by name have the same names and values with several towers as with one."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import QueueInput
from tensorpack.tfutils.summary import add_moving_summary
from tensorpack.train import ModelDesc, launch_train_with_config

from towernmt.callbacks import HookToCallback
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput
from towernmt.train import SyncMultiGPUTrainer, TrainConfig


def rate_of(step):
    """Return the number of the step as a rate: 1 for the first update."""
    return tf.cast(step, tf.float32) + 1.0


class Slope(ModelDesc):
    """Loss (w + 1) * x: gradient descent subtracts rate * x from w in each step. The rate is an operation."""

    def __init__(self, rate=rate_of, factor=None):
        self.rate, self.factor = rate, factor

    def inputs(self):
        return [tf.TensorSpec([], tf.float32, "x")]

    def build_graph(self, x):
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        tf.multiply(x, 2.0, name="nll")
        if self.factor is not None:
            x *= self.factor(tf1.train.get_global_step())
        return tf.multiply(w + 1.0, x, name="cost")

    def optimizer(self):
        rate = tf.identity(self.rate(tf1.train.get_or_create_global_step()), name="learning_rate")
        tf1.summary.scalar("rate", rate)
        add_moving_summary(rate)
        return tf1.train.GradientDescentOptimizer(rate)


class Fetch(tf1.train.SessionRunHook):
    """Fetches tensors by name with each step, and optionally feeds some."""

    def __init__(self, names, fed=None):
        self.names, self.fed, self.values = names, fed or {}, []

    def begin(self):
        self.tensors = [tf1.get_default_graph().get_tensor_by_name(name) for name in self.names]

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self.tensors, feed_dict=self.fed)

    def after_run(self, run_context, run_values):
        self.values.append([float(value) for value in run_values.results])


class Weights(Callback):
    def _before_train(self):
        self.values = [0.0]

    def _trigger_step(self):
        self.values.append(float(self.trainer.sess.run("w/Read/ReadVariableOp:0")))


def ones():
    while True:
        yield [np.float32(1)]


def numbers():
    yield from ([np.float32(number)] for number in range(1, 1000))


class WeightAtTheEnd(Callback):
    def _after_train(self):
        self.value = float(self.trainer.sess.run("w/Read/ReadVariableOp:0"))
        self.step, self.counted = int(self.trainer.sess.run(tf1.train.get_global_step())), self.global_step


class FiveBatches:
    """Ends inside the second cycle of three batches."""

    def batches_per_epoch(self):
        return 5

    def read(self, position=None, start=0, step=1):
        for number in range(start, 5, step):
            yield Position(0, 0, number + 1), self

    def arrays(self):
        return [1.0]


def train(hook, towers, cycle=1, steps=4, data=ones, rate=rate_of, factor=None):
    weights = Weights()
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(
            Slope(rate, factor), QueueInput(DataFromGenerator(data)), steps_per_epoch=steps, max_epoch=1, monitors=[],
            callbacks=[HookToCallback(hook), weights], update_cycle=cycle),
            SyncMultiGPUTrainer(towers=towers, update_cycle=cycle))
    return -np.diff(weights.values)


@pytest.mark.parametrize("towers, cycle", [(1, 1), (2, 1), (2, 3)])
def test_a_rate_that_the_optimizer_makes_as_an_operation_is_fed_by_name(towers, cycle):
    fed = train(Fetch([], {"learning_rate:0": 0.5}), towers, cycle)
    np.testing.assert_allclose(fed, [0.5] * 4)


@pytest.mark.parametrize("towers, cycle", [(1, 1), (2, 1), (2, 3)])
def test_a_rate_of_the_global_step_is_that_of_the_updates_before(towers, cycle):
    hook = Fetch(["learning_rate:0"])
    np.testing.assert_allclose(train(hook, towers, cycle, steps=20), np.arange(1.0, 21.0), rtol=1e-4)
    assert hook.values == [[step] for step in np.arange(1.0, 21.0)]


def rate_in_a_branch(step):
    return tf.cond(tf.less(step, 10), lambda: rate_of(step), lambda: 2.0 * rate_of(step) - rate_of(step))


def rate_in_a_branch_of_a_branch(step):
    return tf.cond(tf.less(step, 10), lambda: rate_in_a_branch(step), lambda: rate_in_a_branch(step))


def rate_in_a_case(step):
    return tf.switch_case(tf.cast(step % 2, tf.int32), [lambda: rate_of(step), lambda: rate_of(step) + 0.0])


def rate_in_a_loop(step):
    return tf.while_loop(lambda turn, _: turn < 3, lambda turn, _: (turn + 1, rate_of(step)), [0, 0.0])[1]


def rate_in_a_function(step):
    return tf.function(rate_of)(step)


RATES_IN_CONTROL_FLOW = (
    rate_in_a_branch, rate_in_a_branch_of_a_branch, rate_in_a_case, rate_in_a_loop, rate_in_a_function)
FACTORS = (rate_in_a_branch, rate_of, rate_in_a_case, rate_in_a_loop, rate_in_a_function)


@pytest.fixture(params=["version 1", "version 2"])
def control_flow(request):
    """Control flow of TensorFlow 1 and 2: users' programs may have switched either on."""
    version_2 = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if request.param == "version 2" else tf1.disable_control_flow_v2)()
    yield
    (tf1.enable_control_flow_v2 if version_2 else tf1.disable_control_flow_v2)()


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("rate, towers, cycle", [
    (rate_in_a_branch, 1, 1), *((rate, 2, 3) for rate in RATES_IN_CONTROL_FLOW),
    *(pytest.param(rate, 1, 1, marks=pytest.mark.slow) for rate in RATES_IN_CONTROL_FLOW[1:])])
def test_a_rate_that_reads_the_global_step_in_control_flow_is_that_of_the_updates_before(rate, towers, cycle):
    rates = train(Fetch([]), towers, cycle, steps=20, rate=rate)
    np.testing.assert_allclose(rates, np.arange(1.0, 21.0), rtol=1e-4)


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("factor, towers, cycle", [
    (rate_in_a_branch, 1, 1), (rate_in_a_branch, 2, 1), *((factor, 2, 3) for factor in FACTORS),
    *(pytest.param(factor, 1, 1, marks=pytest.mark.slow) for factor in FACTORS[1:]),
    *(pytest.param(factor, 2, 1, marks=pytest.mark.slow) for factor in FACTORS[1:])])
def test_a_cost_that_reads_the_global_step_is_that_of_the_updates_before(factor, towers, cycle):
    moves = train(Fetch([]), towers, cycle, steps=20, rate=lambda step: 1.0, factor=factor)
    np.testing.assert_allclose(moves, np.arange(1.0, 21.0), rtol=1e-4)


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("factor", [rate_of, rate_in_a_branch, rate_in_a_function])
def test_the_last_update_of_a_cycle_that_the_data_did_not_fill_runs_no_tower(factor):
    with tf.Graph().as_default():
        weights = WeightAtTheEnd()
        launch_train_with_config(TrainConfig(
            Slope(rate_of, factor), GeneralQueueInput(FiveBatches()), steps_per_epoch=4, max_epoch=1, monitors=[],
            callbacks=[weights], update_cycle=3), SyncMultiGPUTrainer(towers=1, update_cycle=3))
    assert (weights.value, weights.step, weights.counted) == (-(1.0 + 2.0 * 2.0), 2, 2)


@pytest.mark.parametrize("towers", [1, 2])
def test_an_assignment_to_the_global_step_that_the_optimizer_makes_is_not_run(towers):
    def rate(step):
        step.assign_add(100, read_value=False)
        return rate_of(step)

    np.testing.assert_allclose(train(Fetch([]), towers, rate=rate), np.arange(1.0, 5.0), rtol=1e-4)


@pytest.mark.parametrize("towers", [1, 2, 3])
def test_a_loss_by_its_name_is_the_mean_over_the_towers(towers):
    hook = Fetch(["cost:0", "nll:0"], {"learning_rate:0": 0.0})
    train(hook, towers, data=numbers)
    means = np.arange(1.0, 4 * towers + 1).reshape(4, towers).mean(1)
    np.testing.assert_allclose(hook.values, np.stack([means, 2 * means], 1))


@pytest.mark.parametrize("towers", [1, 2])
def test_the_summaries_of_the_optimizer_have_no_towers_name(towers):
    with tf.Graph().as_default() as graph:
        trainer, model = SyncMultiGPUTrainer(towers=towers), Slope()
        trainer.setup_graph(model.get_input_signature(), QueueInput(DataFromGenerator(ones)), model.build_graph,
                            model.get_optimizer)
        names = [tensor.op.name for tensor in graph.get_collection(tf1.GraphKeys.SUMMARIES)]
    assert {"rate", "learning_rate-summary"} <= set(names)
