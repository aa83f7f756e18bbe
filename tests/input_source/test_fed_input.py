"""`FedInput`: a trainer takes each batch and feeds other arrays to the towers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.train import ModelDesc, launch_train_with_config

from towernmt.callbacks.saver import CheckpointSaver
from towernmt.checkpoint.checkpoint_files import read_state
from towernmt.core.errors import FeederError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import FedInput
from towernmt.train import SyncMultiGPUTrainer, TrainConfig

WORDS = tf.TensorSpec([None, 2], tf.int32, "words")


class Line(ModelDesc):
    """A tower function with other inputs than the data: the squared distance of a weight from `values`."""

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None], tf.float32, "values")]

    def build_graph(self, values: Any) -> Any:
        weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer())
        return tf.reduce_mean(tf.square(values - weight), name="loss")

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.5)


class FeedingTrainer(SyncMultiGPUTrainer):
    """Feeds the sums of the rows of each batch.

    Attributes:
        taken_batches: the batches.
        positions: the position after each update.
        broken_number: number of the batch whose processing fails.
    """

    taken_batches: list[list[list[int]]]
    positions: list[str]
    broken_number = -1

    def train_batch(self, run: Any) -> None:
        (words,) = self._input.take(self.hooked_sess)
        self.taken_batches.append(words.tolist())
        if words[0, 0] == self.broken_number:
            raise OSError("the scorer has failed")
        run(self._input.feed(words.sum(axis=1)))

    def run_step(self) -> None:
        super().run_step()
        self.positions.append(self._input.last_position)
        self.weight = self.sess.run(tf1.get_default_graph().get_tensor_by_name("weight/Read/ReadVariableOp:0"))


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


def numbered_batches(count: int) -> Iterator[list[np.ndarray]]:
    return iter([[np.full([4, 2], number, np.int32)] for number in range(count)])


def feeding_trainer(**options: Any) -> FeedingTrainer:
    trainer = FeedingTrainer(**options)
    trainer.taken_batches, trainer.positions = [], []
    return trainer


@pytest.mark.parametrize(("towers", "update_cycle"), [(1, 1), (2, 1), (1, 3)])
def test_towers_train_on_the_fed_arrays(towers: int, update_cycle: int) -> None:
    trainer = feeding_trainer(towers=towers, update_cycle=update_cycle)
    data = FedInput(numbered_batches(3), signature=[WORDS])
    launch_train_with_config(TrainConfig(Line(), data, monitors=[], update_cycle=update_cycle), trainer)
    assert trainer.taken_batches == [[[number, number]] * 4 for number in range(3)]
    assert trainer.positions == [f'{{"datapoints": {count}}}' for count in range(update_cycle, 4, update_cycle)]
    # At the rate 0.5 each update moves the weight to the mean of the fed sums: 0, 2, 4.
    assert trainer.weight == pytest.approx(4.0 if update_cycle == 1 else 2.0)


@pytest.mark.parametrize(("update_cycle", "broken_number", "step"), [(1, 2, 2), (2, 3, 1)])
def test_a_batch_that_was_taken_and_not_trained_on_is_read_again_by_a_resumed_run(
        tmp_path: Path, update_cycle: int, broken_number: int, step: int) -> None:
    trainer = feeding_trainer(towers=1, update_cycle=update_cycle)
    trainer.broken_number = broken_number
    data = FedInput(numbered_batches(5), signature=[WORDS])
    config = TrainConfig(Line(), data, [CheckpointSaver(tmp_path, every_steps=0)], monitors=[],
                         update_cycle=update_cycle)
    with pytest.raises(OSError, match="the scorer has failed"):
        launch_train_with_config(config, trainer)
    assert read_state(tmp_path / f"step-{step}").position == '{"datapoints": 2}'


def test_batches_at_the_end_of_the_data_that_do_not_fill_an_update_cycle_are_counted() -> None:
    trainer, data = feeding_trainer(towers=1, update_cycle=2), FedInput(numbered_batches(3), signature=[WORDS])
    launch_train_with_config(TrainConfig(Line(), data, monitors=[], update_cycle=2), trainer)
    assert trainer.loop.global_step == 2 and data.last_position == '{"datapoints": 3}'


def test_a_feed_that_does_not_fit_the_inputs_is_refused() -> None:
    data = FedInput([], signature=[WORDS])
    data.setup([tf.TensorSpec([None], tf.int32, "ids"), tf.TensorSpec([None], tf.float32, "risks")])
    ids, risks = np.array([3, 4]), np.array([0.5, 1.0])
    assert [array.dtype for array in data.feed(ids, risks).values()] == [np.int32, np.float32]
    with pytest.raises(FeederError, match=r"Expected 2 values \(ids, risks\); got 1"):
        data.feed(ids)
    with pytest.raises(FeederError, match="'ids' .* holds 0.5, which is not a whole number"):
        data.feed(risks, ids)
    with pytest.raises(FeederError, match=r"'risks' has the shape \[2, 1\]"):
        data.feed(ids, risks[:, None])
