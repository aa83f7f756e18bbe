"""A tiny tensorpack trainer for tests of callbacks, with one variable and one input value per step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import Callback, MonitorBase
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import FeedInput
from tensorpack.tfutils.sesscreate import NewSessionCreator
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import SimpleTrainer
from tensorpack.utils import logger

from towernmt.core.tf_compat import tf, tf1


class Recorder(MonitorBase):
    """Records (step, name, value) of every scalar."""

    def __init__(self) -> None:
        self.scalars: list[tuple[int, str, float]] = []

    def process_scalar(self, name: str, val: float) -> None:
        self.scalars.append((self.global_step, name, float(val)))

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for step, scalar, value in self.scalars if scalar == name]


class Do(Callback):
    """Calls `action(callback)` after each step."""

    def __init__(self, action: Callable[[Callback], None]) -> None:
        self._action = action

    def _trigger_step(self) -> None:
        self._action(self)


class PutScores(Callback):
    """A fake validator that records given scores at given steps."""

    def __init__(self, scores: dict[int, float], metric: str = "validation_bleu") -> None:
        self._scores, self._metric = scores, metric

    def _trigger_step(self) -> None:
        if self.global_step in self._scores:
            self.trainer.monitors.put_scalar(self._metric, self._scores[self.global_step])


def _line(x: Any) -> Any:
    """Loss w * x; gradient descent lets w fall by learning_rate * x in each step."""
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    return tf.multiply(w, x, name="loss")


def _descent() -> Any:
    rate = tf1.get_variable("learning_rate", initializer=1.0, trainable=False)
    return tf1.train.GradientDescentOptimizer(rate)


def _fix_log_record(record: logging.LogRecord) -> bool:
    """Fix tensorpack's log call without a placeholder for its argument, which pytest reports as an error."""
    if record.args and "%" not in str(record.msg):
        record.msg, record.args = f"{record.msg}{record.args[0]}", ()
    return True


@pytest.fixture(autouse=True)
def fixed_log() -> Iterator[None]:
    logger._logger.addFilter(_fix_log_record)
    yield
    logger._logger.removeFilter(_fix_log_record)


@pytest.fixture
def put_scores() -> type[PutScores]:
    return PutScores


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def start_at() -> type[_StartAt]:
    return _StartAt


@pytest.fixture
def do() -> type[Do]:
    return Do


@pytest.fixture
def train() -> Iterator[Callable[..., Any]]:
    """`train(callbacks, steps, ...)` runs a SimpleTrainer in a new graph, and returns (trainer, recorder)."""

    def run(callbacks: Sequence[Callback], steps: int, start: int = 0, inputs: Sequence[float] = (1.0,),
            tower: Callable[..., Any] = _line, optimizer: Callable[[], Any] = _descent,
            epochs: int = 1) -> tuple[Any, Recorder]:
        def read() -> Iterator[list[Any]]:
            while True:
                for x in inputs:
                    yield [np.float32(x)]

        recorder = Recorder()
        with tf.Graph().as_default():
            trainer = SimpleTrainer()
            trainer.setup_graph([tf.TensorSpec([], tf.float32, "x")], FeedInput(DataFromGenerator(read)),
                                tower, optimizer)
            trainer.setup_callbacks(list(callbacks), [recorder])
            # The first session sets the size of the thread pool of all later ones, and a staging area needs two
            # threads.
            config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
            trainer.initialize(NewSessionCreator(config=config), _StartAt(start))
            trainer.main_loop(steps, 1, epochs)
        return trainer, recorder

    yield run


class _StartAt(JustCurrentSession):
    """Starts at a later global step, as a resumed run does."""

    def __init__(self, step: int) -> None:
        self._step = step

    def _setup_graph(self) -> None:
        self._assign = tf1.train.get_global_step().assign(self._step)

    def _run_init(self, sess: Any) -> None:
        sess.run(self._assign)
