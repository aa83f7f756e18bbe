"""A minimal tensorpack program: the mean of w * x, by gradient descent, with a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import MonitorBase
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import QueueInput
from tensorpack.tfutils.summary import add_moving_summary
from tensorpack.train import ModelDesc, launch_train_with_config
from tensorpack.train import TrainConfig as TensorpackTrainConfig
from tensorpack.utils import logger

from towernmt.core.tf_compat import tf, tf1
from towernmt.train import SyncMultiGPUTrainer, TrainConfig


class Line(ModelDesc):
    """Loss mean(w * x); each step subtracts learning_rate * mean(x) from w."""

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None], tf.float32, "x")]

    def build_graph(self, x: Any) -> Any:
        w = tf1.get_variable("w", [], initializer=tf1.constant_initializer(10.0))
        cost = tf.reduce_mean(w * x, name="cost")
        tf.identity(w * x, name="product")
        tf1.summary.scalar("plain", cost)
        add_moving_summary(tf.identity(cost, name="moving"))
        return cost

    def optimizer(self) -> Any:
        rate = tf1.get_variable("learning_rate", initializer=1.0, trainable=False)
        return tf1.train.GradientDescentOptimizer(rate)


class Recorder(MonitorBase):
    """Keeps (step, name, value) of every scalar."""

    def __init__(self) -> None:
        self.scalars: list[tuple[int, str, float]] = []

    def process_scalar(self, name: str, val: float) -> None:
        self.scalars.append((self.global_step, name, float(val)))

    def steps_of(self, name: str) -> list[int]:
        return [step for step, other, _ in self.scalars if other == name]


def ones() -> Iterator[list[Any]]:
    while True:
        yield [np.ones(4, np.float32)]


@pytest.fixture
def line() -> type[Line]:
    return Line


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def ones_flow() -> Any:
    return DataFromGenerator(ones)


@pytest.fixture
def log_directory(tmp_path: Any) -> Iterator[Any]:
    """Return the directory of tensorpack's logger, of which a process has one."""
    former = getattr(logger, "_LOG_DIR", None)
    logger.set_logger_dir(str(tmp_path / "log"), action="n")
    yield tmp_path / "log"
    if getattr(logger, "_FILE_HANDLER", None) is not None:
        logger._logger.removeHandler(logger._FILE_HANDLER)
        logger._FILE_HANDLER.close()
        logger._FILE_HANDLER = None
    logger._LOG_DIR = former


@pytest.fixture
def run(ones_flow: Any) -> Callable[..., Any]:
    """Return `run(callbacks, ...)`, which trains `Line` in a new graph and returns the trainer."""

    def train(callbacks: Sequence[Any] = (), steps: int = 2, epochs: int = 2, trainer: Any = None, data: Any = None,
              ours: bool = True, model: Any = None, **options: Any) -> Any:
        with tf.Graph().as_default():
            trainer = trainer() if callable(trainer) else trainer or SyncMultiGPUTrainer(towers=1)
            config = (TrainConfig if ours else TensorpackTrainConfig)(
                model=model or Line(), data=data or QueueInput(ones_flow), callbacks=list(callbacks),
                steps_per_epoch=steps, max_epoch=epochs, **options)
            launch_train_with_config(config, trainer)
        return trainer

    return train
