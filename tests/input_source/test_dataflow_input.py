"""A tensorpack DataFlow in a `GeneralQueueInput` with a counting position, and a source that makes training wait."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator, DataFromList
from tensorpack.train import ModelDesc, launch_train_with_config
from tensorpack.utils import logger

from tests.waiting import PATIENCE
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


class Observer(Callback):
    """Records the batch of each step, over all towers."""

    def _setup_graph(self):
        self.batches, self._shares = [], [t.get_tensor("share") for t in self.trainer.towers.training()]

    def _before_run(self, _):
        return self._shares

    def _after_run(self, _, values):
        self.batches.append([float(x) for share in values.results for x in share])


def train(data, callbacks=(), steps=4, towers=1, model=None):
    observer = Observer()
    with tf.Graph().as_default():
        config = TrainConfig(model or Sum(), data, callbacks=[*callbacks, observer], steps_per_epoch=steps,
                             max_epoch=1, monitors=[])
        launch_train_with_config(config, SyncMultiGPUTrainer(towers=towers))
    return observer.batches


def points(count=3):
    return DataFromList([[np.array([2.0 * i, 2.0 * i + 1], np.float32)] for i in range(count)], shuffle=False)


@pytest.mark.parametrize("towers", [1, 2])
def test_datapoints_are_batches_that_towers_share_again_and_again(towers):
    data = GeneralQueueInput(points())
    assert train(data, towers=towers) == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert data.last_position == '{"datapoints": 4}'
    assert data.size() == 3


def test_a_run_on_a_dataflow_resumes_at_the_next_datapoint(tmp_path):
    saver = lambda: CheckpointSaver(tmp_path)  # noqa: E731
    assert train(GeneralQueueInput(points()), [saver(), StopAtStep(2)]) == [[0, 1], [2, 3]]
    assert train(GeneralQueueInput(points()), [saver(), StopAtStep(5)], steps=9) == [[4, 5], [0, 1], [2, 3]]


def generator():
    yield from ([np.array([2.0 * i, 2.0 * i + 1])] for i in range(3))


@pytest.mark.parametrize("source", [generator, lambda: list(generator()), lambda: tuple(generator())])
def test_a_generator_function_and_an_iterable_are_read_pass_after_pass(source):
    data = GeneralQueueInput(source if source is generator else source())
    assert train(data) == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert data.last_position == '{"datapoints": 4}'


def test_a_generator_is_read_once_and_resumed(tmp_path):
    assert train(GeneralQueueInput(generator()), [CheckpointSaver(tmp_path), StopAtStep(2)]) == [[0, 1], [2, 3]]
    assert train(GeneralQueueInput(generator()), [CheckpointSaver(tmp_path)], steps=9) == [[4, 5]]


class Weighted(Sum):
    """A model with two inputs, of dtypes that NumPy does not choose by itself."""

    def inputs(self):
        return [tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([], tf.int32, "times")]

    def build_graph(self, x, times):
        return super().build_graph(x * tf.cast(times, tf.float32))


@pytest.mark.parametrize("points", [
    [[np.array([1.0, 2.0]), np.int64(3)]], [([1.0, 2.0], 3)], [{"times": 3, "x": np.array([1.0, 2.0])}],
    [[np.array([1, 2], np.int64), np.array(3.0)]]])
@pytest.mark.parametrize("wrap", [DataFromList, lambda points, shuffle: points])
def test_datapoints_are_converted_to_the_inputs_of_the_model(points, wrap):
    assert train(GeneralQueueInput(wrap(points, shuffle=False)), steps=1, model=Weighted()) == [[3, 6]]


@pytest.mark.parametrize("point, message", [
    ([np.zeros(2)], r"mine.db.*: Expected 2 values \(x, times\); got 1"),
    ([np.zeros(2), 1, 2], r"Expected 2 values \(x, times\); got 3"),
    ({"x": np.zeros(2)}, "Expected a dict with the keys x, times; got one without times"),
    ({"x": np.zeros(2), "times": 1, "position": 2}, "got one with the unexpected position"),
    (np.zeros(2), r"for each of x, times; got one array of shape \[2\]"),
    ([np.zeros(2), 2**40], "'times' holds 1099511627776, which int32 cannot hold"),
    ([np.zeros(2), 1.5], "'times' has the dtype float64 and holds 1.5, which is not a whole number"),
    ([np.array([1e300]), 1], "'x' holds .*, which float32 cannot hold"),
    ([np.zeros([2, 2]), 1], r"'x' has the shape \[2, 2\]"),
])
def test_a_datapoint_that_does_not_fit_names_the_models_inputs(point, message):
    with pytest.raises(FeederError, match=message):
        train(GeneralQueueInput([point], name="mine.db"), model=Weighted())


def test_an_empty_dataflow_is_an_error_and_no_endless_loop():
    with pytest.raises(FeederError, match="empty"):
        train(GeneralQueueInput(DataFromGenerator(lambda: iter([]))))


def test_an_invalid_source_or_position_is_refused():
    for invalid in (5, None, "train.de"):
        with pytest.raises(SettingsError, match="a tensorpack DataFlow, or an iterable or generator"):
            GeneralQueueInput(invalid)
    with pytest.raises(DataError, match="is not a position in a DataFlow"):
        GeneralQueueInput(points(), position='{"epoch": 1}')


def test_training_that_waits_for_a_source_names_it_and_continues():
    reported, lines = threading.Event(), []

    class Listen:
        def filter(self, record):
            if "Training has waited" in record.getMessage() and "slow.db" in record.getMessage():
                lines.append(record.getMessage())
                reported.set()
            return True

    def slow():
        yield [np.zeros(2, np.float32)]
        assert reported.wait(PATIENCE)
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
