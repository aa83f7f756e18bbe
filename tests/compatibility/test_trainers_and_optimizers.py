"""The manual's table of the trainers of tensorpack that make the update of one tower, for each optimizer."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import QueueInput
from tensorpack.train import (
    AsyncMultiGPUTrainer,
    ModelDesc,
    SimpleTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
    launch_train_with_config,
)

from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.optimizer import MAKERS
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.train import SyncMultiGPUTrainer, TrainConfig

STEPS = 3
TRAINERS = {
    "SimpleTrainer": SimpleTrainer,
    "ParameterServer": lambda: SyncMultiGPUTrainerParameterServer([0, 1], ps_device="gpu"),
    "Replicated": lambda: SyncMultiGPUTrainerReplicated([0, 1]),
    "Async": lambda: AsyncMultiGPUTrainer([0, 1]),
    "ours": lambda: SyncMultiGPUTrainer(towers=2),
}


class TwoWeights(ModelDesc):
    """Two weights that descend to 1, with a cost whose gradient shrinks on the way."""

    def __init__(self, optimizer):
        self._made = optimizer

    def inputs(self):
        return [tf.TensorSpec([], tf.float32, "x")]

    def build_graph(self, x):
        u, w = (tf1.get_variable(name, [2], initializer=tf1.constant_initializer(0.25)) for name in "uw")
        return tf.multiply(tf.reduce_sum((u - 1.0) ** 2) + tf.reduce_sum((w - 1.0) ** 2), x, name="loss")

    def optimizer(self):
        return self._made()


class Weights(Callback):
    def _before_train(self):
        self.seen, self.powers = [], []

    def _trigger_step(self):
        self.seen.append([self.trainer.sess.run(f"{name}/Read/ReadVariableOp:0") for name in "uw"])
        powers = [v for v in tf1.global_variables() if v.op.name.endswith("beta1_power")]
        self.powers += [float(self.trainer.sess.run(power)) for power in powers]


def ones():
    while True:
        yield [np.float32(1)]


def make(name):
    momentum = 0.9 if name == "momentum" else 0.0
    kind = "sgd" if name == "momentum" else name
    settings = OptimizerSettings(name=kind, momentum=momentum, learning_rate=0.05, beta2=0.98, weight_decay=0.0)
    rate = tf1.get_variable("learning_rate", [], initializer=tf1.constant_initializer(0.05), trainable=False)
    return MAKERS[kind](settings, rate)


@functools.cache
def trained(trainer, optimizer):
    """Return the weights after each step, and Adam's power of beta1, with this trainer and this optimizer."""
    weights = Weights()
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(
            TwoWeights(functools.partial(make, optimizer)), QueueInput(DataFromGenerator(ones)), steps_per_epoch=STEPS,
            max_epoch=1, monitors=[], callbacks=[weights]), TRAINERS[trainer]())
    return np.array(weights.seen), weights.powers


@pytest.mark.parametrize("trainer, optimizer", [
    *((trainer, optimizer) for trainer in ("ParameterServer", "ours") for optimizer in ("sgd", "momentum", "adam",
                                                                                        "lazyadam", "adafactor")),
    ("Replicated", "sgd"), ("Replicated", "momentum")])
def test_the_update_is_that_of_one_tower(trainer, optimizer):
    np.testing.assert_allclose(trained(trainer, optimizer)[0], trained("SimpleTrainer", optimizer)[0], rtol=1e-4)


@pytest.mark.parametrize("trainer", ["SimpleTrainer", "ParameterServer", "ours"])
def test_adam_counts_an_update_once(trainer):
    assert advances(trainer) == [1] * STEPS


@pytest.mark.parametrize("trainer", ["Replicated", "Async"])
def test_adam_counts_an_update_once_for_each_tower_or_variable(trainer):
    """`Replicated` counts each update once per tower, `Async` once per variable, because all share one count.

    The order of the towers is random, and a count may be lost, so the test only checks that the sum is too large.
    """
    assert sum(advances(trainer)) > STEPS


def advances(trainer):
    """Return how many times Adam's power of beta1 was multiplied in each step."""
    exponents = np.log([0.9, *trained(trainer, "adam")[1]]) / np.log(0.9)
    return [int(n) for n in np.rint(np.diff(exponents))]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_an_asynchronous_trainer_makes_an_update_for_each_tower(optimizer):
    assert not np.allclose(trained("Async", optimizer)[0], trained("SimpleTrainer", optimizer)[0], rtol=1e-3)


@pytest.mark.parametrize("trainer", ["Replicated", "Async"])
def test_the_manual_names_the_trainers_with_other_updates(trainer):
    manual = (Path(__file__).parents[2] / "docs" / "reference" / "tensorpack.md").read_text(encoding="utf-8")
    row = next(line for line in manual.splitlines()
               if line.startswith((f"| `SyncMultiGPUTrainer{trainer}`", f"| `{trainer}MultiGPUTrainer`")))
    assert "works, but" in row and "Adam" in row
