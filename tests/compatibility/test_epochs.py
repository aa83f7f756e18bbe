"""tensorpack's callbacks find the last step of an epoch, in a new run and in a resumed run."""

from __future__ import annotations

import json

import pytest
from tensorpack.callbacks import Callback, JSONWriter, MergeAllSummaries

from towernmt.callbacks import CallbackToHook, CheckpointSaver, StopAtStep
from towernmt.core.tf_compat import tf, tf1
from towernmt.train import SyncMultiGPUTrainer

BOTH = ["plain", "moving"]


class Steps(Callback):
    """Records (global step, local step, steps per epoch) after each step, and puts the step as a scalar."""

    def __init__(self):
        self.seen = []

    def _trigger_step(self):
        self.seen.append((self.global_step, self.local_step, self.trainer.steps_per_epoch))
        self.trainer.monitors.put_scalar("put", self.global_step)


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("steps", [1, 4, 5])
def test_summaries_are_recorded_in_the_last_step_of_each_epoch(run, recorder, steps, towers):
    run(steps=steps, epochs=3, monitors=[recorder], trainer=SyncMultiGPUTrainer(towers=towers))
    for name in BOTH:
        assert recorder.steps_of(name) == [steps, 2 * steps, 3 * steps]


def test_summaries_are_recorded_in_a_run_that_goes_on_in_mid_epoch(run, recorder, tmp_path):
    run([CheckpointSaver(tmp_path), StopAtStep(3)], steps=4, monitors=[])
    steps = Steps()
    run([CheckpointSaver(tmp_path), steps], steps=4, epochs=3, monitors=[recorder])
    assert steps.seen == [(4, 0, 1), *((4 + i + 1, i, 4) for i in range(4)), *((8 + i + 1, i, 4) for i in range(4))]
    for name in BOTH:
        assert recorder.steps_of(name) == [4, 8, 12]


def test_tensorpacks_json_has_each_scalar_at_its_step(run, log_directory):
    run([Steps()], steps=4, monitors=[JSONWriter()])
    entries = json.loads((log_directory / "stats.json").read_text())
    assert [(entry["put"], entry["global_step"], entry["epoch_num"]) for entry in entries] == [
        (step, step, (step + 3) // 4) for step in range(1, 9)]


def test_summaries_are_recorded_in_a_plain_monitored_session(graph, recorder):
    step = tf1.train.get_or_create_global_step()
    tf1.summary.scalar("step", step)
    advance, nothing = step.assign_add(1), tf.constant(1.0)
    steps = Steps()
    hook = CallbackToHook(steps, MergeAllSummaries(), monitors=[recorder], steps_per_epoch=4)
    with tf1.train.MonitoredSession(hooks=[hook]) as session:
        session.run(nothing)        # no step
        for _ in range(8):
            session.run(advance)
    assert recorder.steps_of("step") == [4, 8]
    assert steps.seen == [(i, (i - 1) % 4, 4) for i in range(1, 9)]
