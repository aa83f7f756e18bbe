"""Averaged checkpoints and averaged weights, from a run of `towernmt train` to its translations."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.variables import checkpoint_values
from towernmt.callbacks.validation_towers import teacher_forced_batches
from towernmt.checkpoint.averaging import (
    average_checkpoints,
    best_checkpoints,
    checkpoints_between,
    last_checkpoints,
    mean_value,
)
from towernmt.checkpoint.checkpoint_files import read_state, write_values
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.interop.starting_models import open_starting_model
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory

SETTINGS = ["model.hidden_size=16", "model.filter_size=16", "model.heads=2", "model.encoder_layers=1",
            "model.decoder_layers=1", "data.batch_tokens=100", "train.steps=8", "checkpoint.steps=2",
            "validation.steps=4", "checkpoint.keep_best=2", "checkpoint.keep=3", "search.beam_size=2",
            "schedule.warmup_steps=1", "optimizer.ema_decay=0.9", "optimizer.learning_rate=0.05"]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory, prepare_pairs) -> Path:
    """Eight updates with checkpoints 4, 6 and 8, two validations, and a moving average."""
    directory = tmp_path_factory.mktemp("run")
    prepare_pairs(directory)
    assert main(["train", "--defaults=fixed", "--data", str(directory / "data"), "--logdir", str(directory / "run"),
                 "--set", *SETTINGS]) == 0
    return directory / "run"


@pytest.mark.thorough
def test_the_last_the_best_and_those_between_two_steps_are_found(logdir):
    run = RunDirectory(logdir)
    names = [p.name for p in last_checkpoints(run, 2)]
    assert names == ["step-6", "step-8"]
    record = json.loads((logdir / "best" / "record.json").read_text())
    assert [p.name for p in best_checkpoints(run, 2)] == [f"step-{entry['step']}" for entry in record]
    assert [p.name for p in checkpoints_between(run, 4, 7)] == ["step-4", "step-6"]


def test_the_first_parameters_are_not_among_the_last_checkpoints(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (0, 2, 4):
        (run.checkpoints / f"step-{step}").mkdir(parents=True)
        (run.checkpoints / f"step-{step}" / "state.json").write_text("{}")
    assert [p.name for p in last_checkpoints(run, 2)] == ["step-2", "step-4"]
    with pytest.raises(CheckpointError, match="has 2 checkpoints, fewer than 3: request 2, or train"):
        last_checkpoints(run, 3)
    assert [p.name for p in checkpoints_between(run, 0, 2)] == ["step-0", "step-2"]


def test_an_averaged_checkpoint_holds_the_means_and_no_slots(logdir, tmp_path):
    run = RunDirectory(logdir)
    paths = last_checkpoints(run, 3)
    mean_checkpoint = average_checkpoints(run, paths, tmp_path)
    assert mean_checkpoint == tmp_path / "step-8"
    assert read_state(mean_checkpoint).mean_of == [4, 6, 8]
    mean_values, originals = checkpoint_values(mean_checkpoint), [checkpoint_values(path) for path in paths]
    assert "transformer/embedding" in mean_values and "transformer/embedding/ExponentialMovingAverage" in mean_values
    assert not any("Adam" in name or name == "global_step" for name in mean_values)
    for name, value in mean_values.items():
        assert value.dtype == np.float32
        mean = np.mean([values[name].astype(np.float64) for values in originals], 0)
        np.testing.assert_allclose(value, mean, rtol=1e-6, atol=1e-12)
    assert not np.allclose(originals[0]["transformer/embedding"], originals[2]["transformer/embedding"])


def test_the_mean_of_bfloat16_values_is_their_mean_and_not_the_last_value(tmp_path):
    values = [np.array([1, 2, 100], ml_dtypes.bfloat16), np.array([3, -2, 101], ml_dtypes.bfloat16)]
    checkpoints = []
    for step, value in enumerate(values):
        state = {"step": step, "position": None, "callbacks": {}}
        checkpoints.append(OpenCheckpoint(
            write_values({"w": value, "n": np.int32(step)}, tmp_path, step, state) / "model"))
    mean = mean_value(checkpoints, "w")
    assert mean.dtype == ml_dtypes.bfloat16 and mean.astype(np.float32).tolist() == [2, 0, 100.5]
    assert mean_value(checkpoints, "n") == 1


@pytest.mark.parametrize("which, path", [
    (["--last", "2"], "averages/last-2/step-8"),
    pytest.param(["--steps", "4,6"], "averages/steps-4-6/step-6", marks=pytest.mark.thorough)])
def test_the_command_writes_a_checkpoint_to_translate_with_and_to_start_from(logdir, tmp_path, capsys, which, path):
    assert main(["average", "--model", str(logdir), *which]) == 0
    assert str(logdir / path) in capsys.readouterr().out
    (tmp_path / "in").write_text("a b c\nd e\n")
    assert main(["translate", "--model", str(logdir), "--checkpoint", str(logdir / path), "--cpu", "--input",
                 str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    start = open_starting_model(str(logdir / path), "--start")
    assert start.run.path == logdir and start.run.checkpoint(start.checkpoint) == str(logdir / path / "model")


@pytest.mark.parametrize("which, message", [
    (["--last", "9"], "has 3 checkpoints, fewer than 9"), (["--best", "0"], "request 1 or more"),
    (["--steps", "1,3"], "no checkpoint from step 1 to step 3; it has"), (["--steps", "x"], "expected FIRST,LAST")])
def test_the_error_of_checkpoints_that_cannot_be_averaged_is_one_sentence(logdir, capsys, which, message):
    assert main(["average", "--model", str(logdir), *which]) == 1
    assert message in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_refused_by_name(logdir, tmp_path):
    (tmp_path / "step-3").mkdir()
    with pytest.raises(CheckpointError, match="step-3: the checkpoint is damaged"):
        average_checkpoints(RunDirectory(logdir), [tmp_path / "step-3"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_translator_uses_the_moving_average_by_default(logdir):
    saved = checkpoint_values(logdir / "checkpoints" / "step-8")
    for averaged, suffix in ((None, "/ExponentialMovingAverage"), (False, "")):
        options = {} if averaged is None else {"averaged": averaged}
        translator = Translator(logdir, checkpoint="last", **options, engine="graph")
        with translator.predictor.sess.graph.as_default():
            table = next(v for v in tf1.global_variables() if v.op.name == "transformer/embedding")
        used = translator.predictor.sess.run(table)
        assert np.array_equal(used, saved[f"transformer/embedding{suffix}"])


def loss_on_validation_set(logdir: Path, averaged: bool) -> float:
    """Return the negative log-likelihood per target token, with the last checkpoint's weights or their averages."""
    run = RunDirectory(logdir)
    sides = [(logdir.parent / f"valid.{side}").read_text().splitlines() for side in ("source", "target")]
    (batch,) = teacher_forced_batches(*sides, *run.vocabularies(), 4096)
    with tf.Graph().as_default(), tf1.Session() as session:
        with PredictTowerContext(""):
            run.load_model().build_graph(*map(tf.constant, batch))
        init = RestoreCheckpoint(run.checkpoint("last"), averaged)
        init._setup_graph()
        init._run_init(session)
        return float(session.run("nll:0"))


def test_the_validation_uses_the_moving_average(logdir):
    lines = map(json.loads, (logdir / "log" / "stats.jsonl").read_text().splitlines())
    logged = [line["validation_loss"] for line in lines if "validation_loss" in line][-1]
    assert logged == pytest.approx(loss_on_validation_set(logdir, averaged=True), rel=1e-5)
    assert logged != pytest.approx(loss_on_validation_set(logdir, averaged=False), rel=1e-3)


def test_a_run_does_not_resume_with_another_moving_average(logdir, capsys):
    settings = [s for s in SETTINGS if "ema" not in s]
    status = main(["train", "--defaults=fixed", "--data", str(logdir.parent / "data"), "--logdir", str(logdir),
                   "--set", *settings, "optimizer.ema_decay=0"])
    assert status == 1 and "optimizer.ema_decay=0.9" in capsys.readouterr().err


def test_averaging_fewer_than_one_checkpoint_is_refused(logdir):
    with pytest.raises(SettingsError):
        last_checkpoints(RunDirectory(logdir), 0)
