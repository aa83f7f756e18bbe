"""Summaries of a custom model are recorded at steps and at the ends of epochs, from the batch of the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tensorpack.callbacks import MonitorBase
from tensorpack.tfutils.summary import add_moving_summary
from tensorpack.train import ModelDesc, launch_train_with_config

from towernmt.callbacks import CheckpointSaver, StopAtStep
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.train import SyncMultiGPUTrainer, TrainConfig


class Model(ModelDesc):
    def inputs(self) -> Any:
        return [tf.TensorSpec([None], tf.float32, "x")]

    def build_graph(self, x: Any) -> Any:
        tf1.summary.scalar("largest", tf.reduce_max(x))
        add_moving_summary(tf.reduce_max(x, name="moving"))
        return tf.reduce_mean(x) * tf1.get_variable("w", [], initializer=tf1.zeros_initializer())

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.1)


class Recorder(MonitorBase):
    def __init__(self) -> None:
        self.scalars: list[tuple[int, str, float]] = []

    def process_scalar(self, name: str, val: float) -> None:
        self.scalars.append((self.global_step, name, float(val)))

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for step, names, value in self.scalars if name in names]


def train(directory: Any, steps: int, towers: int = 1, cycle: int = 1, summary_steps: int = 3) -> tuple[Recorder, str]:
    recorder = Recorder()
    data = GeneralQueueInput([[np.full(2, float(number))] for number in range(100)])
    with tf.Graph().as_default():
        launch_train_with_config(TrainConfig(
            Model(), data, [CheckpointSaver(directory), StopAtStep(steps)], steps_per_epoch=10, update_cycle=cycle,
            monitors=[recorder], summary_steps=summary_steps), SyncMultiGPUTrainer(towers=towers, update_cycle=cycle))
    return recorder, str(data.last_position)


@pytest.mark.parametrize("towers, cycle", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_summaries_are_recorded_at_steps_from_the_batch_of_the_step(tmp_path, towers, cycle):
    recorder, position = train(tmp_path, 10, towers, cycle)
    # The last batch of update N is number N * cycle - 1. The end of the epoch is step 10.
    assert recorder.of("largest") == [(step, step * cycle - 1.0) for step in (3, 6, 9, 10)]
    assert [step for step, _ in recorder.of("moving")] == [3, 6, 9, 10]
    assert position == f'{{"datapoints": {10 * cycle}}}'     # no batch was taken for summaries alone


def test_a_resumed_run_records_the_steps_of_one_that_never_stopped(tmp_path):
    uninterrupted, _ = train(tmp_path / "whole", 10)
    first, _ = train(tmp_path / "parts", 4)
    second, _ = train(tmp_path / "parts", 10)
    assert [item for item in first.of("largest") if item[0] != 4] + second.of("largest") == uninterrupted.of("largest")


def test_without_steps_they_are_recorded_at_the_ends_of_epochs(tmp_path):
    assert train(tmp_path, 10, summary_steps=0)[0].of("largest") == [(10, 9.0)]
