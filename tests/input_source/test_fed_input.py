"""`FedInput`: a trainer takes each batch and feeds other arrays to the towers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tensorpack.train import ModelDesc, launch_train_with_config

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
        taken_batches: the batches, with the position after each.
    """

    taken_batches: list[tuple[list[list[int]], str]]

    def train_batch(self, run: Any) -> None:
        (words,) = self._input.take(self.hooked_sess)
        self.taken_batches.append((words.tolist(), self._input.last_position))
        run(self._input.feed(words.sum(axis=1)))

    def run_step(self) -> None:
        super().run_step()
        self.weight = self.sess.run(tf1.get_default_graph().get_tensor_by_name("weight/Read/ReadVariableOp:0"))


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize(("towers", "update_cycle"), [(1, 1), (2, 1), (1, 3)])
def test_towers_train_on_the_fed_arrays(towers: int, update_cycle: int) -> None:
    batches = [[np.full([4, 2], number, np.int32)] for number in range(3)]
    trainer = FeedingTrainer(towers=towers, update_cycle=update_cycle)
    trainer.taken_batches = []
    data = FedInput(iter(batches), signature=[WORDS])
    launch_train_with_config(TrainConfig(Line(), data, monitors=[], update_cycle=update_cycle), trainer)
    assert trainer.taken_batches == [([[number, number]] * 4, f'{{"datapoints": {number + 1}}}') for number in range(3)]
    # At the rate 0.5 each update moves the weight to the mean of the fed sums: 0, 2, 4.
    assert trainer.weight == pytest.approx(4.0 if update_cycle == 1 else 2.0)


def test_a_feed_with_too_few_arrays_is_refused() -> None:
    data = FedInput([], signature=[WORDS])
    data.setup(Line().inputs())
    with pytest.raises(ValueError, match="shorter"):
        data.feed()
