"""The Python interface of the package for users of tensorpack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromGenerator
from tensorpack.input_source import FeedInput
from tensorpack.train import ModelDesc, SimpleTrainer
from tensorpack.train import TrainConfig as TensorpackTrainConfig
from tensorpack.train.interface import launch_train_with_config

from towernmt.callbacks import BestCheckpoints, BleuValidator, CheckpointSaver
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import inverse_square_root
from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow import Batches, BatchSettings, PreparedData
from towernmt.input_source import GeneralQueueInput
from towernmt.models import Transformer, TransformerSettings
from towernmt.predict import Translator
from towernmt.run import RunDirectory, settings_of_model
from towernmt.train import SyncMultiGPUTrainer, TrainConfig

SIZES = {"hidden_size": 32, "filter_size": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
         "residual_dropout": 0.0, "embedding_dropout": 0.0}


class Steps(Callback):
    """A tensorpack callback that overrides template methods and records epochs and steps."""

    def _setup_graph(self):
        self.events = []

    def _before_epoch(self):
        self.events.append(f"epoch {self.epoch_num}")

    def _trigger_step(self):
        self.events.append(self.global_step)

    def _after_train(self):
        self.events.append("end")


def make_params(data: PreparedData) -> TransformerSettings:
    return TransformerSettings(**SIZES, source_vocab_size=data.source_vocabulary.size,
                               target_vocab_size=data.target_vocabulary.size)


def launch(data: PreparedData, run: RunDirectory, max_epoch: int) -> Steps:
    """Train with components of tensorpack and towernmt, and return the recorded steps."""
    steps, model = Steps(), Transformer(make_params(data))
    batches = Batches(data, BatchSettings(batch_tokens=256, seed=3))
    with tf.Graph().as_default():
        config = TrainConfig(
            model=model, data=GeneralQueueInput(batches, feeders=2),
            callbacks=[BleuValidator(model, data.valid_source, data.valid_target, data.source_vocabulary,
                                     data.target_vocabulary, every_steps=10),
                       LearningRateSchedule(inverse_square_root(0.01, warmup_steps=30)), BestCheckpoints(run.best),
                       CheckpointSaver(run.checkpoints, every_steps=10), steps],
            monitors=[], max_epoch=max_epoch)
        launch_train_with_config(config, SyncMultiGPUTrainer(towers=1))
    return steps


@pytest.mark.thorough
def test_a_short_program_in_python_trains_resumes_and_translates(corpus, tmp_path):
    data, run = PreparedData(corpus.prepared), RunDirectory(tmp_path / "run")
    an_epoch = Batches(data, BatchSettings(batch_tokens=256, seed=3)).batches_per_epoch()
    assert launch(data, run, 1).events == ["epoch 1", *range(1, an_epoch + 1), "end"]
    assert checkpoint_steps(run.checkpoints) == [0, 10, an_epoch]

    again = launch(data, run, 2)        # resumes with the second epoch
    assert again.events == ["epoch 2", *range(an_epoch + 1, 2 * an_epoch + 1), "end"]
    assert launch(data, run, 2).events == ["end"]       # was finished

    run.begin(settings_of_model(Transformer(make_params(data))), data)
    translations = Translator(run.path, beam_size=5).translate(["ba be bi bo", "", "da de di"])
    assert len(translations) == 3 and translations[1] == ""
    assert all(isinstance(text, str) for text in translations)


class Line(ModelDesc):
    """A plain tensorpack model: the mean of w * x, by gradient descent."""

    def inputs(self):
        return [tf.TensorSpec([None], tf.float32, "x")]

    def build_graph(self, x):
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        return tf.reduce_mean(w * x, name="loss")

    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(tf1.get_variable("learning_rate", initializer=1.0, trainable=False))


class FourNumbers:
    """Batches for `GeneralQueueInput`: [1, 2, 3, 4], forever."""

    def batches_per_epoch(self):
        return 5

    def read(self, position=None, start=0, step=1):
        while True:
            yield self, self

    def to_json(self):
        return "{}"

    def arrays(self):
        return [np.array([1, 2, 3, 4], np.float32)]


@pytest.mark.parametrize("towers", [1, 2])
def test_any_tensorpack_model_and_callback_trains_with_our_trainer(towers):
    steps = Steps()
    with tf.Graph().as_default():
        launch_train_with_config(
            TrainConfig(Line(), GeneralQueueInput(FourNumbers(), feeders=2), callbacks=[steps], steps_per_epoch=5,
                        max_epoch=2, monitors=[]), SyncMultiGPUTrainer(towers=towers))
        assert [v.op.name for v in tf1.trainable_variables()] == ["w"]      # one, for any number of towers
    assert steps.events == ["epoch 1", 1, 2, 3, 4, 5, "epoch 2", 6, 7, 8, 9, 10, "end"]


def test_the_towers_of_any_model_average_their_gradients(tmp_path):
    with tf.Graph().as_default():
        launch_train_with_config(
            TrainConfig(Line(), GeneralQueueInput(FourNumbers()), callbacks=[CheckpointSaver(tmp_path, keep=1)],
                        steps_per_epoch=4, max_epoch=1, monitors=[]), SyncMultiGPUTrainer(towers=2))
    reader = tf.train.load_checkpoint(str(tmp_path / "step-4" / "model"))
    assert reader.get_tensor("w") == pytest.approx(-4 * 2.5)


def test_our_model_trains_with_tensorpacks_own_trainer_and_input(corpus):
    data = PreparedData(corpus.prepared)
    batches = Batches(data, BatchSettings(batch_tokens=256, seed=3))
    losses: list[float] = []

    class Losses(Callback):
        def _before_run(self, _):
            return ["loss:0"]

        def _after_run(self, _, values):
            losses.append(float(values.results[0]))

    def read():
        for _, batch in batches.read():
            yield batch.arrays()

    with tf.Graph().as_default():
        launch_train_with_config(
            TensorpackTrainConfig(model=Transformer(make_params(data)), data=FeedInput(DataFromGenerator(read)),
                                  callbacks=[LearningRateSchedule(inverse_square_root(0.01, 10)), Losses()],
                                  extra_callbacks=[], monitors=[], steps_per_epoch=40, max_epoch=1), SimpleTrainer())
    assert len(losses) == 40
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


def test_a_last_checkpoint_that_cannot_be_written_fails_the_program():
    class Spoiler(Callback):
        def _after_train(self):
            raise OSError("the disk is gone")

    steps = Steps()
    with tf.Graph().as_default(), pytest.raises(OSError, match="the disk is gone"):
        launch_train_with_config(
            TrainConfig(Line(), GeneralQueueInput(FourNumbers()), callbacks=[Spoiler(), steps], steps_per_epoch=2,
                        max_epoch=1, monitors=[]), SyncMultiGPUTrainer(towers=1))
    assert steps.events[-1] == "end"        # the callbacks after it still ended


@pytest.mark.processes
def test_a_program_put_together_by_hand_is_quiet_and_logs_into_its_run(corpus, start, tmp_path: Path):
    program = [Path(__file__).with_name("by_hand.py")]
    for fork in (False, True):      # then a log exists already, and tensorpack does not ask the user about it
        result = start(corpus.prepared, tmp_path / "run", program=program, fork=fork).wait()
        assert (result.status, result.errors) == (0, "")
        assert result.output.splitlines()[-1].startswith("translated: ") and "Restoring" not in result.output
    assert "step 2, nll" in (tmp_path / "run" / "log" / "log.log").read_text()
    kinds = {path.name.split(".")[0] for path in (tmp_path / "run" / "log").iterdir()}
    assert kinds == {"log", "stats", "events"} and (tmp_path / "run" / "log" / "stats.jsonl").exists()
