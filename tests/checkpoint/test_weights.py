"""What of a checkpoint is a model's weights: as the checkpoint tells, or, of an older one, by names."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from towernmt.checkpoint.average import average_checkpoints
from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.checkpoint.start_from import StartFrom
from towernmt.checkpoint.weights import judged_by_names, weights_of_checkpoint, weights_of_graph
from towernmt.core.errors import CheckpointError
from towernmt.core.tf_compat import tf, tf1

OPTIMIZERS = {
    "adam": lambda: tf1.train.AdamOptimizer(0.1), "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "descent": lambda: tf1.train.GradientDescentOptimizer(0.1)}


def build(names, optimizer=None):
    """Variables of these names, with a statistic, a clock and the slots of an optimizer."""
    cost = 0.0
    for name in names:
        cost += tf.reduce_sum(tf1.get_variable(name, [2], initializer=tf1.ones_initializer()) ** 2)
    if optimizer:
        tf1.get_variable("learning_rate", [], trainable=False)
        tf1.get_variable("random_clock", [], tf.int64, trainable=False, initializer=tf1.zeros_initializer())
        OPTIMIZERS[optimizer]().minimize(cost, tf1.train.get_or_create_global_step())
        tf.train.ExponentialMovingAverage(0.9).apply(tf1.trainable_variables())


def save(place, names, optimizer, told=True):
    place.mkdir(parents=True)
    with tf.Graph().as_default(), tf1.Session() as session:
        build(names, optimizer)
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, str(place / "model"), write_meta_graph=False)
        (place / "state.json").write_text(json.dumps({
            "step": 1, "position": None, "callbacks": {}, **({"weights": weights_of_graph()} if told else {})}))
    return str(place / "model")


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slots_averages_and_clocks_are_no_weights(tmp_path, optimizer, told):
    prefix = save(tmp_path / "step-1", ["a/kernel", "a/bias", "extra"], optimizer, told)
    assert weights_of_checkpoint(HeldCheckpoint(prefix)) == ["a/bias", "a/kernel", "extra"]


def test_the_weights_of_a_checkpoint_without_slots_are_all_but_the_bookkeeping():
    assert judged_by_names(["a/kernel", "b", "global_step", "learning_rate", "beta1_power", "random_clock",
                            "loss_scale/scale"]) == ["a/kernel", "b"]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("restore", [RestoreCheckpoint, partial(RestoreCheckpoint, averaged=True), StartFrom])
def test_a_checkpoint_with_weights_that_the_model_lacks_is_refused(tmp_path, graph, restore, told):
    prefix = save(tmp_path / "step-1", ["a", "extra"], "adam", told)
    build(["a"])
    with pytest.raises(CheckpointError, match=r"step-1: it holds the trained variable 'extra', which the model does "
                                              r"not have: another model was trained; "):
        restore(prefix)._setup_graph()


def test_variables_that_the_settings_leave_out_may_be_lacking_when_a_run_starts_from_another(tmp_path, graph):
    prefix = save(tmp_path / "step-1", ["a", "head/extra"], "adam")
    build(["a"])
    StartFrom(prefix, left_out=["^head/"])._setup_graph()


def test_checkpoints_of_another_model_are_not_averaged(tmp_path, monkeypatch):
    run = SimpleNamespace(check_vocabulary=lambda: None, vocabulary=tmp_path / "vocabulary",
                          load_model=lambda model: model)
    save(tmp_path / "step-1", ["a", "extra"], "adam")
    monkeypatch.setattr("towernmt.checkpoint.average.weights_of_model", lambda model: ["a"])
    with pytest.raises(CheckpointError, match="'extra', which the model does not have"):
        average_checkpoints(run, [tmp_path / "step-1"], tmp_path / "mean")
    made = save(tmp_path / "step-2", ["a"], "adam")
    mean = average_checkpoints(run, [tmp_path / "step-2"], tmp_path / "mean")
    assert np.array_equal(tf.train.load_checkpoint(str(mean / "model")).get_tensor("a"),
                          tf.train.load_checkpoint(made).get_tensor("a"))
