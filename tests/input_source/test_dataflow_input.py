"""A tensorpack DataFlow in a GeneralQueueInput, with a position that counts; and a source that lets training wait."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator, DataFromList
from tensorpack.train import ModelDesc, launch_train_with_config
from tensorpack.utils import logger

from towernmt.callbacks import CheckpointSaver, StopAtStep
from towernmt.core.errors import DataError, FeederError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.train import SyncMultiGPUTrainer, TrainConfig


class Sum(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None], tf.float32, "x")]

    def build_graph(self, x):
        tf.identity(x, name="share")
        return tf1.get_variable("w", [], initializer=tf1.zeros_initializer()) * tf.reduce_sum(x)

    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(0.1)


class Seen(Callback):
    """The batch of each step, of all towers."""

    def _setup_graph(self):
        self.batches, self._shares = [], [t.get_tensor("share") for t in self.trainer.towers.training()]

    def _before_run(self, _):
        return self._shares

    def _after_run(self, _, values):
        self.batches.append([float(x) for share in values.results for x in share])


def train(data, callbacks=(), steps=4, towers=1):
    seen = Seen()
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(Sum(), data, callbacks=[*callbacks, seen], steps_per_epoch=steps,
                                             max_epoch=1, monitors=[]), SyncMultiGPUTrainer(towers=towers))
    return seen.batches


def points(count=3):
    return DataFromList([[np.array([2.0 * i, 2.0 * i + 1], np.float32)] for i in range(count)], shuffle=False)


@pytest.mark.parametrize("towers", [1, 2])
def test_datapoints_are_batches_that_towers_share_again_and_again(towers):
    data = GeneralQueueInput(points())
    assert train(data, towers=towers) == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert data.last_position == '{"datapoints": 4}'
    assert data.size() == 3


def test_a_run_on_a_dataflow_goes_on_at_the_next_datapoint(tmp_path):
    saver = lambda: CheckpointSaver(tmp_path)  # noqa: E731
    assert train(GeneralQueueInput(points()), [saver(), StopAtStep(2)]) == [[0, 1], [2, 3]]
    assert train(GeneralQueueInput(points()), [saver(), StopAtStep(5)], steps=9) == [[4, 5], [0, 1], [2, 3]]


def test_an_empty_dataflow_is_an_error_and_no_endless_loop():
    with pytest.raises(FeederError, match="empty"):
        train(GeneralQueueInput(DataFromGenerator(lambda: iter([]))))


def test_what_is_no_source_and_no_position_is_refused():
    with pytest.raises(SettingsError, match="a tensorpack DataFlow"):
        GeneralQueueInput([1, 2, 3])
    with pytest.raises(DataError, match="is no position in a DataFlow"):
        GeneralQueueInput(points(), position='{"epoch": 1}')


def test_training_that_waits_for_a_source_says_for_which_and_goes_on():
    told, lines = threading.Event(), []

    class Listen:
        def filter(self, record):
            if "Training has waited" in record.getMessage() and "slow.db" in record.getMessage():
                lines.append(record.getMessage())
                told.set()
            return True

    def slow():
        yield [np.zeros(2, np.float32)]
        assert told.wait(20)
        while True:
            yield [np.ones(2, np.float32)]

    listen = Listen()
    logger._logger.addFilter(listen)
    try:
        data = GeneralQueueInput(DataFromGenerator(slow), name="slow.db", patience=0.01)
        assert train(data) == [[0, 0], [1, 1], [1, 1], [1, 1]]
    finally:
        logger._logger.removeFilter(listen)
    assert "slow.db (feeder 1 of 1) has been reading for" in lines[0]
