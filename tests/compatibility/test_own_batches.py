"""The loss and the update of towernmt's models equal those of one tower, with every trainer and input of tensorpack."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import FeedInput, QueueInput, StagingInput, TensorInput, TFDatasetInput
from tensorpack.train import (
    AsyncMultiGPUTrainer,
    QueueInputTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
    launch_train_with_config,
)
from tensorpack.train import TrainConfig as TensorpackTrainConfig

from tests.waiting import PATIENCE
from towernmt.core.errors import SettingsError
from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.models import NMTModel
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.randomness import StatelessNormal, set_seed
from towernmt.train import SyncMultiGPUTrainer

SOURCE = np.array([[5, 9, 7, 2], [4, 11, 2, 0]], np.int32)
TARGET = np.array([[8, 6, 2, 0, 0], [10, 3, 12, 18, 2]], np.int32)
BATCH = [SOURCE, np.array([4, 3], np.int32), TARGET, np.array([3, 5], np.int32), np.float32(8)]


class Values(Callback):
    """Records the losses of all training towers in each step, and the variables of the first tower at the end."""

    def _setup_graph(self):
        self.losses, self._named = [], [t.get_tensor("loss") for t in self.trainer.towers.training()]

    def _before_run(self, _):
        return self._named

    def _after_run(self, _, values):
        self.losses.append([float(x) for x in values.results])

    def _after_train(self):
        variables = [v for v in tf1.trainable_variables() if not v.name.startswith("tower1/")]
        self.variables = dict(zip([v.op.name for v in variables], self.trainer.sess.run(variables), strict=True))


class Bag(NMTModel):
    """A model that adds the sum of the source words to the last target word."""

    source_vocab_size = target_vocab_size = 19

    def encode(self, source, source_length):
        words = tf1.get_variable("bag/source", [19, 4], initializer=StatelessNormal(1.0, "source"))
        there = tf.sequence_mask(source_length, tf.shape(source)[1], tf.float32)
        # with dense gradients: tensorpack's AsyncMultiGPUTrainer cannot scale sparse ones
        return tf.reduce_sum(tf.one_hot(source, 19) @ words * there[:, :, None], 1)

    def decode_hidden(self, memory, target_in):
        words = tf1.get_variable("bag/target", [19, 4], initializer=StatelessNormal(1.0, "target"))
        return tf.one_hot(target_in, 19) @ words + memory[:, None]

    def output_projection(self):
        kernel = tf1.get_variable("kernel", [19, 4], initializer=StatelessNormal(1.0, "kernel"))
        return Projection(kernel, tf1.get_variable("bias", [19], initializer=tf1.zeros_initializer()))

    def start_state(self, memory, beam):
        raise NotImplementedError

    def decode_step(self, token, state):
        raise NotImplementedError

    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(0.1)


class Again:
    """Yields the same batch repeatedly, for `GeneralQueueInput`."""

    def batches_per_epoch(self):
        return 100

    def read(self, position=None, start=0, step=1):
        while True:
            yield self, self

    def to_json(self):
        return "{}"

    def arrays(self):
        return BATCH


def flow():
    def read():
        while True:
            yield BATCH

    return DataFromGenerator(read)


def train(trainer, data, callbacks=(), monitors=()) -> Values:
    logging.getLogger("tensorpack").setLevel(logging.ERROR)
    values = Values()
    with tf.Graph().as_default():
        set_seed(3)
        launch_train_with_config(TensorpackTrainConfig(
            model=Bag(), data=data(), callbacks=[values, *callbacks], extra_callbacks=[], monitors=list(monitors),
            steps_per_epoch=2, max_epoch=1, session_creator=SessionCreator()), trainer())
    return values


@pytest.fixture(scope="module")
def expected() -> Values:
    return train(SimpleTrainer, lambda: FeedInput(flow()))


def test_batches_of_a_cycle_pass_through_tensorpacks_staging_area_too(expected):
    found = train(lambda: SyncMultiGPUTrainer(towers=2, update_cycle=3), INPUTS["QueueInput"])
    assert found.losses[1] == pytest.approx(2 * expected.losses[1], rel=1e-4)


def test_tensorpacks_staging_of_our_input_is_refused_in_an_update_cycle():
    with pytest.raises(SettingsError, match="StagingInput.*GeneralQueueInput"):
        train(lambda: SyncMultiGPUTrainer(towers=2, update_cycle=2), INPUTS["GeneralQueueInput, staged"])


INPUTS = {
    "FeedInput": lambda: FeedInput(flow()),
    "QueueInput": lambda: QueueInput(flow()),
    "StagingInput": lambda: StagingInput(QueueInput(flow()), device="/cpu:0"),
    "TensorInput": lambda: TensorInput(lambda: [tf.constant(x) for x in BATCH]),
    "TFDatasetInput": lambda: TFDatasetInput(tf1.data.Dataset.from_tensors(tuple(BATCH)).repeat()),
    "GeneralQueueInput": lambda: GeneralQueueInput(Again()),
    "GeneralQueueInput, staged": lambda: StagingInput(GeneralQueueInput(Again()), device="/cpu:0"),
}
TRAINERS = {
    "SimpleTrainer": SimpleTrainer,
    "QueueInputTrainer": QueueInputTrainer,
    "SyncMultiGPUTrainerReplicated": lambda: SyncMultiGPUTrainerReplicated([0, 1]),
    "SyncMultiGPUTrainerParameterServer": lambda: SyncMultiGPUTrainerParameterServer([0, 1]),
    "AsyncMultiGPUTrainer": lambda: AsyncMultiGPUTrainer([0, 1]),
    "ours": lambda: SyncMultiGPUTrainer(towers=1),
    "ours, 2 towers": lambda: SyncMultiGPUTrainer(towers=2),
    "ours, 2 towers, a cycle of 2": lambda: SyncMultiGPUTrainer(towers=2, update_cycle=2),
    "ours, 8 towers": lambda: SyncMultiGPUTrainer(towers=8),
}


@pytest.mark.parametrize("trainer, data", [
    *(("ours, 2 towers", data) for data in INPUTS if data != "FeedInput"),
    *((trainer, "QueueInput") for trainer in TRAINERS if trainer not in (
        "ours, 2 towers", "ours, 8 towers")),
    *((trainer, "GeneralQueueInput") for trainer in TRAINERS if trainer not in (
        "QueueInputTrainer", "ours", "ours, 2 towers", "ours, 8 towers")), # the first trainer accepts only QueueInput
])
def test_every_trainer_and_input_makes_the_update_of_one_tower(expected, trainer, data):
    found = train(TRAINERS[trainer], INPUTS[data])
    assert len(found.losses) == 2
    if trainer == "AsyncMultiGPUTrainer":       # its towers update one after the other, in no fixed order
        assert np.mean(found.losses[0]) == pytest.approx(expected.losses[0][0], rel=0.1)
        return
    assert np.mean(found.losses[0]) == pytest.approx(expected.losses[0][0], rel=1e-5)
    assert np.mean(found.losses[1]) == pytest.approx(expected.losses[1][0], rel=1e-4)
    assert set(found.variables) == set(expected.variables)
    for name, value in expected.variables.items():
        np.testing.assert_allclose(found.variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the processors of a process are set as on Linux")
@pytest.mark.parametrize("trainer, data", [
    ("ours, 8 towers", "GeneralQueueInput, staged"),
    *(pytest.param(*names, marks=pytest.mark.slow) for names in (
        ("SyncMultiGPUTrainerReplicated", "QueueInput"), ("ours, 2 towers", "QueueInput"),
        ("ours, 8 towers", "QueueInput"), ("ours, 2 towers, a cycle of 2", "StagingInput"),
        ("AsyncMultiGPUTrainer", "QueueInput")))])
def test_towers_that_wait_for_each_other_do_not_hang_on_one_processor(trainer: str, data: str) -> None:
    done = subprocess.run([sys.executable, Path(__file__).with_name("one_processor.py"), trainer, data],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.strip()[-7:]) == (0, "2 steps"), done.stderr[-2000:]
