"""Within a trainer, each callback sees the runs that it belongs to: steps, accumulation, sampling, data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.train.interface import launch_train_with_config
from tensorpack.train.model_desc import ModelDesc

from towernmt.callbacks import HookToCallback, StopAtStep
from towernmt.callbacks.run_hooks import session_for
from towernmt.core.errors import SettingsError
from towernmt.core.runs import Run, belong_to
from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.input_source import GeneralQueueInput
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer


class Number(NamedTuple):
    value: float

    def arrays(self) -> list[Any]:
        return [np.full([2], self.value, np.float32)]


class Numbers:
    """An endless sequence of numbers 0, 1, 2, ..."""

    def batches_per_epoch(self):
        return 1000

    def read(self, position=None, start=0, step=1):
        for i in range(start, 100_000, step):
            yield Position(0, 0, i + 1), Number(float(i))


class Line(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None], tf.float32, "x")]

    def build_graph(self, x):
        tf.reduce_mean(x, name="mean_x")
        return tf.reduce_mean(x * tf1.get_variable("w", [], initializer=tf1.zeros_initializer()), name="loss")

    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(tf1.get_variable("learning_rate", initializer=0.1, trainable=False))


class Sees(Callback):
    """Records the values that it fetches in each run."""

    def __init__(self, tensor: str = "mean_x:0") -> None:
        self._tensor, self.values = tensor, []

    def _before_run(self, _):
        return [self._tensor]

    def _after_run(self, _, values):
        self.values.append(float(values.results[0]))


class Samples(SyncMultiGPUTrainer):
    """Makes one run that samples and one that fetches data before each step."""

    def run_step(self):
        self.drawn = self.session(Run.SAMPLING).run("sample:0")
        self.session(Run.DATA).run("sample:0")
        super().run_step()


def train(callbacks, trainer=SyncMultiGPUTrainer, steps=4, **options):
    with tf.Graph().as_default():
        tf.constant(7.0, name="sample")
        trainer = trainer(towers=1, **options)
        launch_train_with_config(TrainConfig(
            Line(), GeneralQueueInput(Numbers(), feeders=1), callbacks=[*callbacks, StopAtStep(steps)], monitors=[],
            steps_per_epoch=1000, session_creator=SessionCreator()), trainer)
        return trainer


def test_a_callback_of_the_accumulation_sees_its_batches_and_no_step():
    steps, accumulated = Sees(), belong_to(Sees(), Run.ACCUMULATION)
    trainer = train([steps, accumulated], update_cycle=3)
    assert steps.values == [2, 5, 8, 11]
    assert accumulated.values == [0, 1, 3, 4, 6, 7, 9, 10]
    assert trainer.global_step == 4


def test_without_such_a_callback_the_accumulation_runs_in_the_raw_session():
    steps = Sees()
    trainer = train([steps], update_cycle=3)
    assert steps.values == [2, 5, 8, 11]
    assert session_for(trainer, Run.ACCUMULATION) is trainer.sess


def test_a_run_that_samples_fires_only_what_belongs_to_it_and_takes_no_batch():
    steps, sampled = Sees(), belong_to(Sees("sample:0"), Run.SAMPLING)
    trainer = train([steps, sampled], Samples)
    assert steps.values == [0, 1, 2, 3] and sampled.values == [7] * 4
    assert trainer.drawn == 7 and trainer.global_step == 4
    assert trainer.session(Run.DATA) is trainer.sess


def test_two_callbacks_that_name_the_same_feed_are_refused_before_training():
    class Feeds(Sees):
        feeds = ("rate:0",)

    class FeedHook(tf1.train.SessionRunHook):
        feeds = ("rate:0",)

    with pytest.raises(SettingsError, match="Feeds and FeedHook both feed the tensor 'rate:0'"):
        train([Feeds(), HookToCallback(FeedHook())])


def test_two_callbacks_that_feed_the_same_tensor_are_refused_at_the_first_step():
    class Feeds(Callback):
        def _before_run(self, _):
            return tf1.train.SessionRunArgs(None, {self.graph.get_tensor_by_name("sample:0"): 1.0})

    class FeedsToo(Feeds):
        pass

    with pytest.raises(SettingsError, match="Feeds and FeedsToo both feed the tensor 'sample:0'"):
        train([Feeds(), FeedsToo()])
