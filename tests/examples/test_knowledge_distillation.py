"""examples/knowledge_distillation.py: both levels, on a tiny teacher; the loss against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from towernmt.core.tf_compat import tf1
from towernmt.core.world import World, in_world
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory
from towernmt.train.trainer import SyncMultiGPUTrainer

pytestmark = pytest.mark.thorough

STUDENT = ["model.hidden_size=16", "model.filter_size=32", "model.heads=2", "model.encoder_layers=1",
           "model.decoder_layers=1", "data.batch_tokens=512", "validation.steps=0", "log.steps=1",
           "train.deterministic=false", "optimizer.learning_rate=0.01", "schedule.warmup_steps=10"]


def test_a_student_learns_from_a_frozen_teacher_that_is_not_in_its_checkpoints(
        paths, example, weights, scalars, tmp_path):
    arguments = ["word", f"--teacher={paths.run}", f"--data={paths.data}", f"--logdir={tmp_path}", "--weight=0.7",
                 "--set", *STUDENT]
    distillation = example("knowledge_distillation")
    assert distillation.main([*arguments, "train.steps=8"]) == 0
    assert distillation.main([*arguments, "train.steps=16", "--towers=2"]) == 0
    after = weights(tmp_path)
    assert after["global_step"] == 16 and not any("teacher" in name for name in after)
    assert after["transformer/embedding"].shape[1] == 16
    losses = scalars(tmp_path, "loss")
    assert len(losses) == 16 and np.mean(losses[-3:]) < np.mean(losses[:3])
    assert len(Translator(tmp_path, engine="graph").translate(["ba da fo"])) == 1


def test_the_cost_is_shared_between_reference_and_teacher(paths, example):
    distillation = example("knowledge_distillation")
    run = RunDirectory(paths.run)
    model = distillation.make_student(run.settings(), run, weight=0.3)
    source, length = np.array([[5, 6, 2], [7, 2, 0]], np.int32), np.array([3, 2], np.int32)
    target, target_length = np.array([[8, 9, 2], [4, 2, 0]], np.int32), np.array([3, 2], np.int32)
    with tf1.Graph().as_default():
        inputs = [tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()]
        with TrainTowerContext(""):
            cost = model.build_graph(*inputs)
            assert not any(v.op.name.startswith("teacher/") for v in tf1.global_variables())
            target_in = np.array([[1, 8, 9], [1, 4, 2]], np.int32)
            with tf1.variable_scope("", reuse=True):
                student = model.decode(model.encode(source, length), target_in)
            with tf1.variable_scope("teacher", reuse=True):
                teacher = model.teacher.decode(model.teacher.encode(source, length), target_in)
        load = distillation.LoadTeacher(run.checkpoint())
        load._setup_graph()
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            load._saver.restore(session, load.checkpoint)
            loss, s, t = session.run([cost, student, teacher], dict(zip(inputs, (
                source, length, target, target_length, 5.0), strict=True)))
    normalised = s - np.log(np.exp(s).sum(-1, keepdims=True))
    q = np.exp(t) / np.exp(t).sum(-1, keepdims=True)
    real = np.arange(3) < target_length[:, None]
    nll = -np.take_along_axis(normalised, target[..., None], -1)[..., 0][real].sum()
    agreement = -(q * normalised).sum(-1)[real].sum()
    assert loss == pytest.approx((0.7 * nll + 0.3 * agreement) / 5, rel=1e-4)


def test_each_process_of_a_training_loads_the_teacher(paths, example):
    load = example("knowledge_distillation").LoadTeacher(RunDirectory(paths.run).checkpoint())
    with in_world(World(1, 2)):
        assert SyncMultiGPUTrainer(towers=1).register_callback(load)


def test_a_student_learns_the_teachers_translations(paths, example, weights, tmp_path, capfd):
    arguments = ["sequence", f"--teacher={paths.run}", f"--source={paths.text}/source", f"--logdir={tmp_path}",
                 "--beam=1", "--set", *STUDENT, "train.steps=5"]
    assert example("knowledge_distillation").main(arguments) == 0
    lines = (paths.text / "source").read_text().splitlines()
    written = (tmp_path / "distilled.target").read_text().splitlines()
    assert (tmp_path / "distilled.source").read_text().splitlines() == lines and len(written) == len(lines)
    assert written[:3] == Translator(paths.run, beam_size=1, engine="graph").translate(lines[:3])
    assert weights(tmp_path)["global_step"] == 5
    (tmp_path / "other").write_text("ba da\n")
    assert example("knowledge_distillation").main([*arguments, f"--source={tmp_path / 'other'}"]) == 1
    assert "distilled.target has the translations of another text than --source" in capfd.readouterr().err


@pytest.mark.slow
def test_distillation_works_with_word_dropout_and_r_drop(paths, example, scalars, tmp_path):
    arguments = ["word", f"--teacher={paths.run}", f"--data={paths.data}", f"--logdir={tmp_path}", "--set", *STUDENT,
                 "model.word_dropout=0.1", "model.r_drop_alpha=5.0", "train.steps=8"]
    assert example("knowledge_distillation").main(arguments) == 0
    losses = scalars(tmp_path, "loss")
    assert len(losses) == 8 and np.isfinite(losses).all()
