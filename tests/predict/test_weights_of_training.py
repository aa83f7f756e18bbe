"""A model with weights that only its training tower uses: all readers of checkpoints work, and refuse wrong ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tensorpack.predict import PredictConfig

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.checkpoint.weights import training_tower, weights_of_model
from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError
from towernmt.predict.search.decoding_tower import search_signature, search_tower
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.trained_model import TrainedModel, make_predictor

pytestmark = pytest.mark.thorough

CODE = '''
"""Transformers with a second task: they also predict the length of the target."""
from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tf_compat import tf, tf1
from towernmt.models import Transformer, TransformerSettings

PRESETS = {"toy": {"hidden_size": 16, "filter_size": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}}


class InAllTowers(Transformer):
    """The head is part of `build_graph` in every tower."""

    settings: TransformerSettings

    def build_graph(self, source, source_length, target, target_length, target_tokens, alignment=None):
        loss = super().build_graph(source, source_length, target, target_length, target_tokens, alignment)
        return loss + self.head(target_length) if self.has_head else loss

    def head(self, target_length):
        with tf1.variable_scope("length_head"):
            kernel = tf1.get_variable("kernel", [1, 2])
            bias = tf1.get_variable("softmax_bias", [self.settings.target_vocab_size])
            mean = tf1.get_variable("mean", [], trainable=False, collections=["variables", "model_variables"])
        return tf.reduce_mean((tf.cast(target_length, tf.float32)[:, None] * kernel - bias[:2] - mean) ** 2) / 100

    @property
    def has_head(self):
        return True


class InTrainingTowers(InAllTowers):
    """The head is part of training towers only."""

    @property
    def has_head(self):
        return get_current_tower_context().is_training


class Misspelt(InTrainingTowers):
    """Another name for a weight of the head."""

    def head(self, target_length):
        return tf.reduce_mean(tf.cast(target_length, tf.float32)) * tf1.get_variable("length_haed/kernel", [])


class OtherShape(InTrainingTowers):
    """Another shape of a weight of the head."""

    def head(self, target_length):
        with tf1.variable_scope("length_head"):
            kernel, bias = tf1.get_variable("kernel", [3, 2]), tf1.get_variable("softmax_bias", [1])
            tf1.get_variable("mean", [], trainable=False, collections=["variables", "model_variables"])
        return tf.reduce_mean(kernel) + tf.reduce_mean(bias)


class CannotTrain(InTrainingTowers):
    """A training tower that needs what only the trainer has."""

    def head(self, target_length):
        return open("/nowhere/teacher.npy")


class Sharpened(InTrainingTowers):
    """A weight that only search uses."""

    def decode_step(self, token, state, attention=False):
        logits, *others = super().decode_step(token, state, attention)
        return logits * tf1.get_variable("sharpness", []), *others
'''
HEAD = {"length_head/kernel", "length_head/softmax_bias", "length_head/mean"}
SETTINGS = ["data.batch_tokens=100", "train.steps=4", "checkpoint.steps=2", "validation.steps=4",
            "schedule.warmup_steps=1", "optimizer.ema_decay=0.5", "search.beam_size=2"]


@pytest.fixture(scope="module", params=[pytest.param("InAllTowers", marks=pytest.mark.slow), "InTrainingTowers"])
def run(request, tmp_path_factory, prepare_pairs) -> Path:
    """Train a run with validation, whose directory contains the only copy of the model's code."""
    place = tmp_path_factory.mktemp("run")
    prepare_pairs(place)
    (place / "heads.py").write_text(CODE)
    (place / "text").write_text("a b c\nd e\n")
    assert main(["train", "--defaults=fixed", "--model", f"{place / 'heads.py'}:{request.param}", "--preset", "toy",
                 "--data", str(place / "data"), "--logdir", str(place / "run"), "--set", *SETTINGS]) == 0
    (place / "heads.py").unlink()
    return place / "run"


def names_in(checkpoint: Path) -> set[str]:
    return set(OpenCheckpoint(checkpoint / "model").shapes())


def other_model(run: Path, name: str, tmp_path: Path) -> Path:
    """Return a copy of the run that names another class of the same file as its model."""
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copied / "graphs", ignore_errors=True)
    settings = copied / "settings.yaml"
    text = settings.read_text()
    for former in ("InAllTowers", "InTrainingTowers"):
        text = text.replace(f"heads.py:{former}", f"heads.py:{name}")
    settings.write_text(text)
    return copied


def test_the_run_is_translated_with_either_weights_and_in_an_ensemble(run, tmp_path):
    text = str(run.parent / "text")
    for number, options in enumerate(([], ["--last-weights", "--checkpoint", "last"], ["--model", str(run)])):
        output = tmp_path / f"{number}"
        assert main(["translate", "--model", str(run), *options, "--input", text, "--output", str(output)]) == 0
        assert len(output.read_text().splitlines()) == 2


@pytest.mark.parametrize("command", [["score"], ["align"], ["evaluate"]])
def test_the_run_is_scored_aligned_and_evaluated(run, command):
    text = str(run.parent / "text")
    side = "--reference" if command == ["evaluate"] else "--target"
    assert main([*command, "--model", str(run), "--source", text, side, text]) == 0


def test_averaged_and_grown_checkpoints_keep_the_weights_and_begin_other_runs(run, tmp_path):
    """The test also covers validation and resuming."""
    averages, grown, text = tmp_path / "averages", tmp_path / "grown", str(run.parent / "text")
    assert main(["average", "--model", str(run), "--last", "2", "--output", str(averages)]) == 0
    assert HEAD <= names_in(averages / "step-4")
    assert main(["translate", "--model", str(run), "--checkpoint", str(averages / "step-4"), "--input", text]) == 0
    assert main(["grow", "--model", str(run), "--vocabulary", str(run.parent / "data"), "--output", str(grown)]) == 0
    assert HEAD <= names_in(grown / "checkpoints" / "step-0")
    shutil.copytree(run / "code", tmp_path / "code")
    command = ["train", "--defaults=fixed", "--model", f"{tmp_path / 'code' / 'heads.py'}:InTrainingTowers",
               "--preset", "toy", "--data",
               str(run.parent / "data"), "--logdir", str(tmp_path / "tuned"), "--set", "train.steps=1",
               "data.batch_tokens=100", "validation.steps=0"]
    assert main([*command, f"init.checkpoint={grown}"]) == 0
    assert main([*command, "train.steps=2"]) == 0


@pytest.mark.parametrize("format", ["savedmodel", pytest.param("litert", marks=pytest.mark.slow)])      # one graph
def test_the_search_is_exported(run, format, tmp_path):
    assert main(["export", "--model", str(run), "--format", format, "--output", str(tmp_path / "export")]) == 0


def test_a_package_holds_what_predicting_uses(run, tmp_path, capsys):
    package, text = tmp_path / "model.towernmt.zip", str(run.parent / "text")
    assert main(["package", "--model", str(run), "--licence", "CC0-1.0", "--languages", "de-en", "--output",
                 str(package)]) == 0
    capsys.readouterr()
    assert main(["translate", "--model", str(package), "--trust-code", "--input", text]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("tower", ["search", "build_graph"])
def test_a_predictor_of_tensorpack_restores_the_checkpoint_with_the_model(run, tower):
    with TrainedModel(run) as trained:
        model, prefix = trained.model, trained.checkpoint
        settings = trained.run.group("search", SearchSettings())

    def config(**others) -> PredictConfig:
        if tower == "search":
            return PredictConfig(tower_func=search_tower(model, settings), input_signature=search_signature(model),
                                 input_names=["source", "source_length"], output_names=["tokens"],
                                 session_init=RestoreCheckpoint(prefix, **others))
        return PredictConfig(model=model, input_names=["source", "source_length", "target"], output_names=["logits"],
                             session_init=RestoreCheckpoint(prefix, **others))

    arrays = [np.array([[5, 6, 2]], np.int32), np.array([3], np.int32), np.array([[5, 2]], np.int32)]
    predictor = make_predictor(config(model=model))
    assert predictor(*arrays[:len(predictor.input_tensors)])[0].shape[0] == 1
    if tower == "search":
        with pytest.raises(CheckpointError, match=r"pass RestoreCheckpoint\(model=MODEL\)"):
            make_predictor(config())


@pytest.mark.parametrize("name, message", [
    ("Misspelt", "has the trained variable 'length_head/kernel' (and 2 more), which the model does not have"),
    pytest.param("OtherShape", "'length_head/kernel' has shape [1, 2] in this checkpoint but [3, 2] in the model's "
                 "training", marks=pytest.mark.slow),
    ("CannotTrain", "the training tower of CannotTrain, which shows whether the checkpoint belongs to the model, "
                    "cannot be built (FileNotFoundError: "),
    ("Sharpened", "translation uses the variable 'sharpness', which the training tower of Sharpened does not create")])
def test_what_is_not_the_models_own_is_refused(run, name, message, tmp_path, capsys):
    copied, text = other_model(run, name, tmp_path), str(run.parent / "text")
    assert main(["translate", "--model", str(copied), "--input", text]) == 1
    assert message in capsys.readouterr().err
    if name == "Misspelt":
        assert main(["average", "--model", str(copied), "--last", "1"]) == 1
        assert message in capsys.readouterr().err
        assert main(["grow", "--model", str(copied), "--vocabulary", str(run.parent / "data"), "--output",
                     str(tmp_path / "grown")]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "grown").exists()


def test_a_weight_that_only_search_uses_ends_a_training_with_validation(run, tmp_path, capsys):
    (tmp_path / "heads.py").write_text(CODE)
    assert main(["train", "--defaults=fixed", "--model", f"{tmp_path / 'heads.py'}:Sharpened", "--preset", "toy",
                 "--data", str(run.parent / "data"), "--logdir", str(tmp_path / "new"), "--set", *SETTINGS]) == 1
    error = capsys.readouterr().err
    assert "requests the variable 'sharpness', which the first training tower did not create" in error


def test_the_weights_of_predicting_and_of_training(run):
    with TrainedModel(run) as trained:
        predicting, training = weights_of_model(trained.model), training_tower(trained.model)
    assert HEAD == set(training.weights) - set(predicting) and training.weights["length_head/kernel"] == [1, 2]
    assert "random_clock" in training.variables
