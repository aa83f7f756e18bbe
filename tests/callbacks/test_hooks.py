"""TensorFlow's hooks as callbacks, callbacks as TensorFlow's hooks, and examples/hooks.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.train.base import StopTraining

from towernmt.callbacks import (
    BestCheckpoints,
    CallbackToHook,
    CheckpointSaver,
    EarlyStopping,
    HookToCallback,
    NaNGuard,
    Progress,
    StatefulCallback,
    StopAfterMinutes,
    StopAtStep,
    StopOnSignal,
    separate_runs,
)
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import constant
from towernmt.callbacks.stateful import EndOfTraining
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.runs import Run, run_as
from towernmt.core.tf_compat import tf, tf1

W = "w/Read/ReadVariableOp:0"
ROOT = Path(__file__).resolve().parents[2]


class Calls(tf1.train.SessionRunHook):
    """Records the calls of a hook's methods."""

    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.coord = coord
        self.calls.append("session")

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs({"w": W})

    def after_run(self, run_context, run_values):
        self.calls.append(float(run_values.results["w"]))

    def end(self, session):
        self.calls.append(f"end {session.run(W):g}")


def test_all_methods_of_a_hook_are_called_by_its_callback(train):
    hook = Calls()
    train([LearningRateSchedule(constant(1.0)), HookToCallback(hook)], steps=3)
    assert hook.calls[:2] == ["begin", "session"] and hook.calls[-1] == "end -3"
    assert len(hook.calls) == 6


def test_tensorflows_own_hooks_work_as_callbacks(train, tmp_path):
    hooks = [tf1.train.LoggingTensorHook(["loss:0"], every_n_iter=1), tf1.train.NanTensorHook("loss:0"),
             tf1.train.StepCounterHook(every_n_steps=1, output_dir=str(tmp_path)),
             tf1.train.FinalOpsHook(W),
             tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=2),
             tf1.train.StopAtStepHook(last_step=4)]
    trainer, _ = train([HookToCallback(hook) for hook in hooks], steps=100)
    assert trainer.global_step == 4
    assert hooks[3].final_ops_values == -4.0
    assert {path.name for path in tmp_path.glob("model.ckpt-*.index")} >= {"model.ckpt-4.index"}
    assert list(tmp_path.glob("events.*"))


def test_a_stop_request_to_the_coordinator_ends_training(train):
    class Stops(Calls):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            if len(self.calls) == 4:
                self.coord.request_stop()

    hook = Stops()
    trainer, _ = train([HookToCallback(hook)], steps=50)
    assert trainer.global_step == 2 and hook.calls[-1].startswith("end")


def test_a_hook_does_not_end_by_an_error(train, do):
    def fail(callback):
        raise ValueError("broken")

    hook = Calls()
    with pytest.raises(ValueError, match="broken"):
        train([HookToCallback(hook), do(fail)], steps=5)
    assert not str(hook.calls[-1]).startswith("end")


def test_an_object_that_is_not_a_hook_is_refused():
    with pytest.raises(SettingsError, match="SessionRunHook"):
        HookToCallback(print)
    with pytest.raises(SettingsError, match="callbacks"):
        CallbackToHook(Calls())


def model(learning_rate=0.1):
    """Loss (w - 1) ** 2 over a fed weight; the train step advances the global step."""
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    rate = tf1.get_variable("learning_rate", initializer=learning_rate, trainable=False)
    scale = tf1.placeholder_with_default(1.0, [], "scale")
    loss = tf.multiply(tf.square(w - 1.0), scale, name="loss")
    return tf1.train.GradientDescentOptimizer(rate).minimize(loss, tf1.train.get_or_create_global_step())


class Remembers(StatefulCallback):
    """Records a score, and the events that it sees."""

    state_key = "remembers"

    def __init__(self):
        self.steps, self.epochs = [], []

    def state(self):
        return {"steps": self.steps}

    def restore_state(self, state):
        self.steps = state["steps"]

    def _trigger_step(self):
        self.steps.append((self.global_step, self.local_step))
        self.trainer.monitors.put_scalar("score", float(-self.global_step if self.global_step > 3 else 1))

    def _trigger_epoch(self):
        self.epochs.append((self.epoch_num, self.global_step))


def run(hook, op, steps=100, **options):
    with tf1.train.MonitoredTrainingSession(hooks=[hook], **options) as session, hook:
        for _ in range(steps):
            if session.should_stop():
                break
            session.run(op)


def test_our_callbacks_work_in_a_plain_monitored_training_session(graph, tmp_path, recorder, caplog):
    remembers, saver = Remembers(), CheckpointSaver(tmp_path / "checkpoints", every_steps=2)
    hook = CallbackToHook(
        NaNGuard(), remembers, LearningRateSchedule(constant(0.25)), BestCheckpoints(tmp_path / "best", metric="score"),
        saver, Progress(2), StopAfterMinutes(5), StopAtStep(5), StopOnSignal(), monitors=[recorder], steps_per_epoch=2)
    run(hook, model())
    assert remembers.steps == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0)]
    assert "Training ends: the limit of 5 updates is reached." in caplog.text
    assert remembers.epochs == [(1, 2), (2, 4)]
    assert saver.latest().name == "step-5"
    assert (tmp_path / "best" / "step-3").is_dir()      # of equal scores the last
    assert [step for step, _ in recorder.of("steps_per_second")] == [2, 4]
    values = tf.train.load_checkpoint(str(saver.latest() / "model"))
    w = 0.0
    for _ in range(5):
        w -= 0.25 * 2 * (w - 1.0)
    np.testing.assert_allclose(values.get_tensor("w"), w, rtol=1e-6)


def test_early_stopping_ends_a_plain_session(graph, recorder):
    remembers = Remembers()
    run(CallbackToHook(remembers, EarlyStopping("score", 2), monitors=[recorder]), model())
    assert len(remembers.steps) < 20


def test_a_run_that_makes_no_step_counts_none(graph):
    remembers = Remembers()
    hook, op = CallbackToHook(remembers), model()
    with tf1.train.MonitoredTrainingSession(hooks=separate_runs([hook])) as session:
        with run_as(Run.DATA):
            session.run("w:0")
        session.run(op)
        session.run("w:0")
    assert remembers.steps == [(1, 0)]


def test_divergence_ends_a_plain_session_before_it_is_saved(graph, tmp_path):
    saver, op = CheckpointSaver(tmp_path, every_steps=1), model()
    hook = CallbackToHook(NaNGuard(), saver)
    with pytest.raises(DivergenceError, match="loss is not finite"), \
            tf1.train.MonitoredTrainingSession(hooks=[hook]) as session, hook:
        session.run(op)
        session.run(op, {"scale:0": np.nan})
    assert saver.latest().name == "step-1"


def test_the_callbacks_end_after_an_error_of_the_program(graph, tmp_path):
    saver, op = CheckpointSaver(tmp_path, every_steps=0), model()
    hook = CallbackToHook(saver)
    with pytest.raises(ValueError), tf1.train.MonitoredTrainingSession(hooks=[hook]) as session, hook:
        session.run(op)
        raise ValueError
    assert saver.latest().name == "step-1"


def test_an_update_interrupted_before_its_step_is_counted_is_not_saved(graph, tmp_path):
    class Interrupts(tf1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.session.run(tf1.train.get_global_step()) == 2:
                raise KeyboardInterrupt

    saver, op = CheckpointSaver(tmp_path, every_steps=0), model()
    hook = CallbackToHook(saver)
    with pytest.raises(KeyboardInterrupt), \
            tf1.train.MonitoredTrainingSession(hooks=[Interrupts(), hook]) as session, hook:
        while True:
            session.run(op)
    assert saver.latest().name == "step-0"      # not step-1 with the parameters of step 2


def test_a_callback_that_stops_before_a_run_ends_the_session_normally(graph):
    class Ends(Callback):
        ended = False

        def _before_run(self, _):
            if self.global_step == 2:
                raise StopTraining("the data has ended")

        def _after_train(self):
            self.ended = True

    ends = Ends()
    run(CallbackToHook(ends), model())
    assert ends.ended and ends.global_step == 2


def test_a_callback_that_stops_before_training_stops_the_session(graph, do, caplog):
    class Never(Callback):
        def _before_train(self):
            raise StopTraining("nothing to do")

    remembers = Remembers()
    run(CallbackToHook(Never(), remembers), model())
    assert remembers.steps == [] and "Training ends: nothing to do." in caplog.text


def test_a_callback_that_was_not_started_is_not_ended(graph):
    class Never(Callback):
        def _before_train(self):
            raise StopTraining("nothing to do")

    run(CallbackToHook(Never(), Progress(1)), model())


def test_callbacks_end_if_a_later_one_cannot_start(graph, tmp_path):
    class Fails(Callback):
        def _before_train(self):
            raise OSError("the disk is gone")

    saver = CheckpointSaver(tmp_path)
    with pytest.raises(OSError, match="the disk is gone"):
        run(CallbackToHook(saver, Fails()), model())
    with CheckpointSaver(tmp_path)._lock:       # which the failed training does not hold
        pass


def test_the_end_of_the_data_is_no_error_for_the_callbacks(graph):
    class Ends(Callback):
        def _before_train(self):
            self._end = EndOfTraining()

        def _after_train(self):
            self.by_error = self._end.by_error()

    ends, number = Ends(), tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(2)).get_next()
    with tf1.control_dependencies([number]):
        op = model()
    run(CallbackToHook(ends), op)
    assert ends.global_step == 2 and not ends.by_error


def test_an_exception_at_the_end_is_raised_after_all_callbacks_have_ended(graph):
    class Breaks(Callback):
        def _after_train(self):
            raise OSError("the disk is gone")

    class Ends(Callback):
        ended = False

        def _after_train(self):
            self.ended = True

    ends = Ends()
    with pytest.raises(OSError, match="the disk is gone"):
        run(CallbackToHook(Breaks(), ends), model(), steps=1)
    assert ends.ended


def test_a_hook_begins_again_in_a_second_session():
    class Ends(Callback):
        count = 0

        def _after_train(self):
            self.count += 1

    ends = Ends()
    hook = CallbackToHook(ends)
    for _ in range(2):
        with tf.Graph().as_default():
            run(hook, model(), steps=1)
    assert ends.count == 2


def test_a_saver_that_saves_a_second_training_does_not_write_over_the_first(tmp_path):
    saver = CheckpointSaver(tmp_path, every_steps=1)
    with tf.Graph().as_default():
        run(CallbackToHook(saver), model(), steps=2)
    with tf.Graph().as_default(), pytest.raises(SettingsError, match="step 2, but training starts at step 0"):
        run(CallbackToHook(saver), model(), steps=1)


def test_callbacks_of_one_hook_that_feed_the_same_tensor_are_refused_by_name(graph):
    class Feeds(Callback):
        def _before_run(self, _):
            return tf1.train.SessionRunArgs(None, {self.graph.get_tensor_by_name("scale:0"): 2.0})

    class FeedsToo(Feeds):
        pass

    op = model()
    with pytest.raises(SettingsError, match="Feeds and FeedsToo both feed the tensor 'scale:0'"):
        run(CallbackToHook(Feeds(), FeedsToo()), op)


@pytest.mark.thorough
def test_the_example_fails_in_plain_tensorflow_and_works_with_separate_runs(start_program):
    done = start_program((ROOT / "examples" / "hooks.py").read_text()).wait()
    assert done.status == 0, done.errors
    lines = [line.strip() for line in done.output.splitlines() if not line.startswith("[")]
    assert lines[0] == "In plain TensorFlow:"
    assert "InvalidArgumentError" in lines[1] and "placeholder tensor 'batch'" in lines[1]
    assert "y = 3.00 x + 1.00 after 60 steps" in lines
    assert lines[-1].startswith("SettingsError: LearningRateSetter and LearningRateSetter both feed the tensor "
                                "'learning_rate:0'")
