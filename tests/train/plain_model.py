"""A model of two weights, batches from a list, and a short training run, for quick tests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
from tensorpack.callbacks import Callback
from tensorpack.train.interface import launch_train_with_config
from tensorpack.train.model_desc import ModelDesc

from towernmt.core.graph_state import towers_of_batch
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput
from towernmt.models.layers.randomness import dropout, start_clock
from towernmt.train.config import TrainConfig

ROWS = 4


class PlainModel(ModelDesc):
    """Fits a line; the batches in `too_large` run out of memory.

    Attributes:
        processed_numbers: the numbers of the batches that a tower has processed.
    """

    def __init__(self, too_large: Collection[int] = (), dropout: float = 0.0) -> None:
        self.too_large, self.dropout = set(too_large), dropout
        self.processed_numbers: list[int] = []

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([], tf.float32, "number"),
                tf.TensorSpec([], tf.float32, "target_tokens")]

    def build_graph(self, x: Any, number: Any, target_tokens: Any) -> Any:
        def check(value: Any) -> Any:
            if int(value) in self.too_large:
                raise MemoryError(f"OOM when allocating batch {int(value)}")
            self.processed_numbers.append(int(value))
            return np.float32(0.0)

        start_clock(target_tokens)
        with tf1.control_dependencies([tf1.py_func(check, [number], tf.float32)]):
            x = tf.identity(x)
        weights = tf1.get_variable("weights", [2, 1], initializer=tf1.zeros_initializer())
        missed = tf.reduce_sum(tf.square(tf.matmul(dropout(x, self.dropout, "x"), weights) - 1.0))
        return tf.multiply(missed, towers_of_batch() / target_tokens, name="loss")

    def optimizer(self) -> Any:
        rate = tf1.get_variable("learning_rate", initializer=0.1, trainable=False)
        return tf1.train.GradientDescentOptimizer(rate)


class PlainBatch(NamedTuple):
    """One batch, in the order of the model's inputs."""

    x: np.ndarray
    number: np.float32
    target_tokens: np.float32

    def arrays(self) -> list[Any]:
        return list(self)


class PlainBatches:
    """A number of batches, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.count = count

    def batches_per_epoch(self) -> int:
        return self.count

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Any:
        for i in range((position.batch if position else 0) + start, self.count, step):
            x = np.random.default_rng(i).normal(size=[ROWS, 2]).astype(np.float32)
            yield Position(0, 0, i + 1), PlainBatch(x, np.float32(i), np.float32(ROWS))


class KeptWeights(Callback):
    """Keeps the weights at the end of training."""

    _chief_only = False

    def _setup_graph(self) -> None:
        (self._variable,) = tf1.trainable_variables()

    def _after_train(self) -> None:
        self.weights = np.array(self.trainer.sess.run(self._variable))


def train_plainly(trainer: Callable[[], Any], callbacks: list[Any], model: PlainModel, batches: int = 6,
                  monitors: list[Any] | None = None) -> np.ndarray:
    """Train on all batches, and return the final weights, float32 `[2, 1]`."""
    with tf.Graph().as_default():
        new_trainer, weights = trainer(), KeptWeights()
        launch_train_with_config(TrainConfig(
            model, GeneralQueueInput(PlainBatches(batches)), callbacks=[*callbacks, weights], monitors=monitors or [],
            update_cycle=new_trainer.update_cycle), new_trainer)
        return weights.weights
