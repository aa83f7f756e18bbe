"""The weights of a model in a checkpoint: as listed there, or for an older checkpoint by their names."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tensorpack.train.model_desc import ModelDesc

from towernmt.checkpoint.averaging import average_checkpoints
from towernmt.checkpoint.checkpoint_files import state_text
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.restore import RestoreCheckpoint, StartFrom
from towernmt.checkpoint.weights import weights_by_slots, weights_of_checkpoint, weights_of_graph, weights_of_model
from towernmt.core.errors import CheckpointError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models import Transformer, TransformerSettings

OPTIMIZERS = {
    "adam": lambda: tf1.train.AdamOptimizer(0.1), "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "descent": lambda: tf1.train.GradientDescentOptimizer(0.1)}


def build(names, optimizer=None):
    """Build variables of these names, with a statistic, a clock and the slots of an optimizer."""
    cost = 0.0
    for name in names:
        cost += tf.reduce_sum(tf1.get_variable(name, [2], initializer=tf1.ones_initializer()) ** 2)
    if optimizer:
        tf1.get_variable("learning_rate", [], trainable=False)
        tf1.get_variable("random_clock", [], tf.int64, trainable=False, initializer=tf1.zeros_initializer())
        OPTIMIZERS[optimizer]().minimize(cost, tf1.train.get_or_create_global_step())
        tf.train.ExponentialMovingAverage(0.9).apply(tf1.trainable_variables())


def save(directory, names, optimizer, listed=True):
    directory.mkdir(parents=True)
    with tf.Graph().as_default(), tf1.Session() as session:
        build(names, optimizer)
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, str(directory / "model"), write_meta_graph=False)
        (directory / "state.json").write_text(state_text({
            "step": 1, "position": None, "callbacks": {}, **({"weights": weights_of_graph()} if listed else {})}))
    return str(directory / "model")


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slots_averages_and_clocks_are_no_weights(tmp_path, optimizer, listed):
    prefix = save(tmp_path / "step-1", ["a/kernel", "a/bias", "extra"], optimizer, listed)
    assert weights_of_checkpoint(OpenCheckpoint(prefix)) == ["a/bias", "a/kernel", "extra"]


def test_the_weights_of_a_checkpoint_without_slots_are_all_but_the_bookkeeping():
    assert weights_by_slots(["a/kernel", "b", "global_step", "learning_rate", "beta1_power", "random_clock",
                            "loss_scale/scale"]) == ["a/kernel", "b"]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("restore", [RestoreCheckpoint, partial(RestoreCheckpoint, averaged=True), StartFrom])
def test_a_checkpoint_with_weights_that_the_model_lacks_is_refused(tmp_path, graph, restore, listed):
    prefix = save(tmp_path / "step-1", ["a", "extra"], "adam", listed)
    build(["a"])
    with pytest.raises(CheckpointError, match=r"step-1 has the trained variable 'extra', which the model does "
                                              r"not have, so it belongs to another model; "):
        restore(prefix)._setup_graph()


def test_variables_that_the_settings_leave_out_may_be_lacking_when_a_run_starts_from_another(tmp_path, graph):
    prefix = save(tmp_path / "step-1", ["a", "head/extra"], "adam")
    build(["a"])
    StartFrom(prefix, left_out=["^head/"])._setup_graph()


class Towers(ModelDesc):
    """A model whose training tower has the variable `a` and further variables."""

    def __init__(self, **training_weights):
        self.training_weights = training_weights

    def inputs(self):
        return [tf.TensorSpec([2], tf.float32, "x")]

    def build_graph(self, x):
        build(["a"])
        return sum(tf.reduce_sum(tf1.get_variable(name, shape)) for name, shape in self.training_weights.items())

    def optimizer(self):
        raise NotImplementedError


class Broken(Towers):
    def build_graph(self, x):
        raise OSError("teacher.npy is missing")


@pytest.mark.parametrize("listed", [True, False])
def test_a_prediction_graph_may_lack_weights_that_only_the_training_tower_has(tmp_path, graph, listed):
    prefix = save(tmp_path / "step-1", ["a", "extra"], "adam", listed)
    build(["a"])
    RestoreCheckpoint(prefix, model=Towers(extra=[2]))._setup_graph()


@pytest.mark.parametrize("model, graph_has, message", [
    (Towers(), ["a"], "has the trained variable 'extra', which the model does not have, so it"),
    (Towers(extar=[2]), ["a"], "has the trained variable 'extra', which the model does not have"),
    (Towers(extra=[3]), ["a"], r"'extra' has shape \[2\] in this checkpoint but \[3\] in the model's training tower"),
    (Broken(), ["a"], r"the training tower of Broken, .*, cannot be built \(OSError: teacher.npy is missing\)"),
    (Towers(extra=[2]), ["a", "sharp"], "translation uses the variable 'sharp', which the training tower of Towers "),
    (Towers(extra=[2], sharp=[2]), ["a", "sharp"], "variable 'sharp' is not in this checkpoint, which belongs to")])
def test_a_weight_that_neither_graph_nor_training_tower_has_is_refused(tmp_path, graph, model, graph_has, message):
    prefix = save(tmp_path / "step-1", ["a", "extra"], "adam")
    build(graph_has)
    with pytest.raises(CheckpointError, match=message):
        RestoreCheckpoint(prefix, model=model)._setup_graph()


def test_checkpoints_of_another_model_are_not_averaged(tmp_path, monkeypatch):
    run = SimpleNamespace(check_vocabulary=lambda: None, vocabulary=tmp_path / "vocabulary",
                          load_model=lambda model: Towers(head=[2]))
    save(tmp_path / "step-1", ["a", "extra"], "adam")
    monkeypatch.setattr("towernmt.checkpoint.averaging.weights_of_model", lambda model: ["a"])
    with pytest.raises(CheckpointError, match="'extra', which the model does not have"):
        average_checkpoints(run, [tmp_path / "step-1"], tmp_path / "mean")
    prefix = save(tmp_path / "step-2", ["a"], "adam")
    mean = average_checkpoints(run, [tmp_path / "step-2"], tmp_path / "mean")
    assert np.array_equal(tf.train.load_checkpoint(str(mean / "model")).get_tensor("a"),
                          tf.train.load_checkpoint(prefix).get_tensor("a"))
    save(tmp_path / "step-3", ["a", "head"], "adam")
    mean = average_checkpoints(run, [tmp_path / "step-3"], tmp_path / "mean")
    assert {"a", "head"} <= set(OpenCheckpoint(mean / "model").shapes())
    mean = average_checkpoints(run, [tmp_path / "step-2", tmp_path / "step-3"], tmp_path / "other")
    assert "head" not in OpenCheckpoint(mean / "model").shapes()    # not all have it


def test_a_weight_that_only_alignment_uses_is_a_prediction_weight_if_the_checkpoint_has_it():
    class Aligner(Transformer):
        gives_attention = True

        def decode_with_attention(self, memory, target_in):
            hidden = self.decode_hidden(memory, target_in)
            return hidden, tf.zeros([1, 1, 1]) * tf1.get_variable("aligner", [])

    model = Aligner(TransformerSettings(hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1,
                                        source_vocab_size=9, target_vocab_size=9))
    assert "aligner" not in weights_of_model(model) and "aligner" in weights_of_model(model, {"aligner"})


def test_a_model_whose_cost_has_other_inputs_predicts_with_the_weights_of_its_architecture():
    class ExpectedRisk(Transformer):
        def inputs(self):
            return [*super().inputs()[:2], tf.TensorSpec([None, None, None], tf.int32, "candidates"),
                    tf.TensorSpec([None, None], tf.int32, "candidates_length")]

    settings = TransformerSettings(hidden_size=8, filter_size=8, heads=2, encoder_layers=1, decoder_layers=1,
                                   source_vocab_size=9, target_vocab_size=9)
    assert weights_of_model(ExpectedRisk(settings)) == weights_of_model(Transformer(settings))
