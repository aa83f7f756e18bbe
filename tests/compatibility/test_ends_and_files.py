"""Assumptions of tensorpack and TensorFlow programs: checkpoints by name, costs without a name, normal ends."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.predict import OfflinePredictor, PredictConfig
from tensorpack.tfutils.sessinit import SaverRestore, get_model_loader

from towernmt.callbacks import BestCheckpoints, CheckpointSaver, HookToCallback, NaNGuard, StopAtStep
from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.core.errors import DivergenceError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models import Transformer, TransformerSettings
from towernmt.models.interface import shift_right
from towernmt.train import SyncMultiGPUTrainer


class Put(Callback):
    """Records a score in each step; the second is the best."""

    def _trigger_step(self):
        self.trainer.monitors.put_scalar("score", float(-abs(self.global_step - 2)))


def test_tensorflow_and_tensorpack_find_the_last_checkpoint_and_the_best(run, tmp_path):
    run([Put(), BestCheckpoints(tmp_path / "best", metric="score"),
         CheckpointSaver(tmp_path / "all", every_steps=1, keep=2), StopAtStep(5)], steps=9)
    assert checkpoint_steps(tmp_path / "all") == [4, 5]
    assert tf.train.latest_checkpoint(str(tmp_path / "all")) == str(tmp_path / "all" / "step-5" / "model")
    assert tf.train.latest_checkpoint(str(tmp_path / "best")) == str(tmp_path / "best" / "step-2" / "model")
    listed = tf1.train.get_checkpoint_state(str(tmp_path / "all")).all_model_checkpoint_paths
    assert list(listed) == [str(tmp_path / "all" / f"step-{step}" / "model") for step in (4, 5)]

    with tf.Graph().as_default():
        w = tf1.get_variable("w", [])
        with tf1.Session() as session:
            for make in (SaverRestore, get_model_loader):
                make(str(tmp_path / "all" / "checkpoint")).init(session)
                assert session.run(w) == 10.0 - 5.0
                make(str(tmp_path / "best" / "checkpoint")).init(session)
                assert session.run(w) == 10.0 - 2.0


def test_the_guard_watches_the_cost_of_the_trainer_whatever_its_name(run, line):
    class Diverges(line):
        def build_graph(self, x):
            return super().build_graph(x) / tf.cast(tf1.train.get_global_step() < 2, tf.float32)

    with pytest.raises(DivergenceError, match="at step 3: the loss is not finite"):
        run([NaNGuard()], model=Diverges(), steps=5)
    with pytest.raises(DivergenceError, match="at step 3: the loss of tower 0 is not finite"):
        run([NaNGuard()], model=Diverges(), steps=5, trainer=SyncMultiGPUTrainer(towers=2))


class Stops(tf1.train.SessionRunHook):
    def __init__(self, where, step):
        self.where, self.step, self.ended = where, step, False

    def before_run(self, run_context):
        self.stop("before")
        return tf1.train.SessionRunArgs(tf1.train.get_global_step())

    def after_run(self, run_context, run_values):
        self.stop("after")

    def stop(self, where):
        if where == self.where:
            self.step -= 1
            if self.step == 0:
                raise StopIteration

    def end(self, session):
        self.ended = True


class StopsAsCallback(Callback):
    """A callback that raises the exception of the hook."""

    def __init__(self, hook):
        self._before_run, self._after_run, self._stops = hook.before_run, hook.after_run, hook

    def _after_train(self):
        self._stops.end(None)


@pytest.mark.parametrize("cycle", [1, 3])
@pytest.mark.parametrize("wrap", [HookToCallback, StopsAsCallback])
@pytest.mark.parametrize("where, last", [("before", 2), ("after", 3)])
def test_a_hooks_stop_iteration_is_a_normal_end_with_a_last_checkpoint(run, tmp_path, wrap, where, last, cycle):
    hook = Stops(where, 3)
    trainer = run([wrap(hook), CheckpointSaver(tmp_path, every_steps=0)], steps=9,
                  trainer=SyncMultiGPUTrainer(towers=1, update_cycle=cycle))
    if cycle > 1 and where == "before":
        last += 1       # the batches that the cycle had collected by then make an update
    assert trainer.global_step == last and checkpoint_steps(tmp_path)[-1] == last
    saved = tf.train.load_checkpoint(str(tmp_path / f"step-{last}" / "model"))
    assert saved.get_tensor("w") == 10.0 - last     # one update a step
    assert hook.ended


def test_a_predictor_gives_the_logits_by_name(graph):
    model = Transformer(TransformerSettings(hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1,
                                            source_vocab_size=19, target_vocab_size=19))
    source = np.array([[5, 9, 7, 2], [4, 11, 2, 0]], np.int32)
    target, length = np.array([[8, 6, 2], [10, 3, 2]], np.int32), np.array([4, 3], np.int32)
    logits, = OfflinePredictor(PredictConfig(
        model=model, input_names=["source", "source_length", "target"], output_names=["logits"]))(
            source, length, target)
    assert logits.shape == (2, 3, 19)
    nll_of = OfflinePredictor(PredictConfig(model=model, output_names=["logits", "nll"]))
    logits, nll = nll_of(source, length, target, np.array([3, 3], np.int32), np.float32(6))
    exact = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert nll == pytest.approx(-np.mean(np.take_along_axis(exact, target[:, :, None], 2)), rel=1e-4)
    assert shift_right(tf.constant(target)).shape == (2, 3)


def test_a_program_after_tensorpacks_boilerplate_trains_and_predicts(run, line, ones_flow, recorder, tmp_path):
    """Like tensorpack's examples/boilerplate.py: savers and validation as callbacks, a predictor from the files."""
    from tensorpack.callbacks import InferenceRunner, MaxSaver, ModelSaver, ScalarStats
    from tensorpack.dataflow import FixedSizeData
    from tensorpack.tfutils.sessinit import SmartInit

    directory = str(tmp_path / "saved")
    run([ModelSaver(checkpoint_dir=directory), InferenceRunner(FixedSizeData(ones_flow, 2), ScalarStats("cost")),
         MaxSaver("validation_cost", checkpoint_dir=directory)], steps=4, epochs=2, monitors=[recorder])
    assert recorder.steps_of("validation_cost") == [4, 8]
    for name, cost in (("checkpoint", 2.0), ("max-validation_cost", 6.0)):
        with tf.Graph().as_default():
            predict = OfflinePredictor(PredictConfig(
                model=line(), session_init=SmartInit(f"{directory}/{name}"), input_names=["x"], output_names=["cost"]))
            assert predict(np.ones(4, np.float32)) == [cost]
