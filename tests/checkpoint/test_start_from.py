"""Starting from the parameters of another run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from towernmt.checkpoint.checkpoint_files import state_text
from towernmt.checkpoint.embedding_rows import PretrainedEmbeddings
from towernmt.checkpoint.restore import StartFrom, initial_checkpoint
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.optimizer import AVERAGE_SUFFIX
from towernmt.run.directory import RunDirectory
from towernmt.run.initial_values import initial_values
from towernmt.run.run_settings import InitSettings, default_settings


def save(directory: Path, values: dict[str, list[float]]) -> str:
    """Write a checkpoint with these variables, and return its prefix."""
    directory.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default():
        for name, value in values.items():
            tf1.get_variable(name, initializer=np.array(value, np.float32))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver().save(session, str(directory / "model"), write_meta_graph=False)
    (directory / "state.json").write_text(state_text({"step": 1, "position": None, "callbacks": {}}))
    return str(directory / "model")


def start(prefix: str, trainable: list[str], untrained: list[str] = (), **options) -> dict[str, list[float]]:
    """Return the variables of a graph that starts from a checkpoint; each is [9, 9] before."""
    with tf.Graph().as_default():
        for name in [*trainable, *untrained]:
            tf1.get_variable(name, initializer=np.array([9, 9], np.float32), trainable=name in trainable)
        init = StartFrom(prefix, **options)
        init._setup_graph()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            init._run_init(session)
            return {v.op.name: session.run(v).tolist() for v in tf1.global_variables()}


def test_weights_are_taken_and_the_training_state_is_not(tmp_path):
    prefix = save(tmp_path, {"a": [1, 2], "b": [3, 4], "b/Adam": [5, 6], "unused": [7, 8]})
    assert start(prefix, ["a", "b"], ["b/Adam", "global"]) == {
        "a": [1, 2], "b": [3, 4], "b/Adam": [9, 9], "global": [9, 9]}


def test_averages_of_the_initial_run_become_weights_and_averages(tmp_path):
    prefix = save(tmp_path, {"a": [1, 2], "b": [3, 4], "b" + AVERAGE_SUFFIX: [5, 6]})
    assert start(prefix, ["a", "b"], ["a" + AVERAGE_SUFFIX, "b" + AVERAGE_SUFFIX]) == {
        "a": [1, 2], "b": [5, 6], "a" + AVERAGE_SUFFIX: [1, 2], "b" + AVERAGE_SUFFIX: [5, 6]}


def test_a_missing_variable_is_refused_unless_it_may_be_new(tmp_path):
    prefix = save(tmp_path, {"a": [1, 2]})
    with pytest.raises(CheckpointError, match="'layer/lhuc' is not in this checkpoint; .* init.new"):
        start(prefix, ["a", "layer/lhuc"])
    assert start(prefix, ["a", "layer/lhuc"], new=["/lhuc$"]) == {"a": [1, 2], "layer/lhuc": [9, 9]}
    with pytest.raises(CheckpointError, match="none of the model's variables"):
        start(prefix, ["layer/lhuc"], new=["/lhuc$"])


def test_another_shape_or_a_damaged_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"'a' has shape \[3\] in this checkpoint but \[2\] in the model"):
        start(save(tmp_path, {"a": [1, 2, 3]}), ["a"])
    with pytest.raises(CheckpointError, match="nothing: the checkpoint does not exist"):
        start(str(tmp_path / "nothing" / "model"), ["a"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CheckpointError, match="damaged or incomplete .model.index is missing"):
        start(str(tmp_path / "nothing" / "model"), ["a"])


def test_a_run_stands_for_its_last_checkpoint_and_a_checkpoint_for_itself(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.save_settings(default_settings())
    for step in (5, 10):
        save(run.checkpoints / f"step-{step}", {"a": [1, step]})
    average = run.path / "averages" / "last-2" / "step-10"
    save(average, {"a": [1, 7]})
    assert initial_checkpoint(run.path)[1] == str(run.checkpoints / "step-10/model")
    found_run, prefix = initial_checkpoint(run.checkpoints / "step-5")
    assert found_run.path == run.path and prefix == str(run.checkpoints / "step-5/model")
    found_run, prefix = initial_checkpoint(average)
    assert found_run.path == run.path and prefix == str(average / "model")
    for wrong in (tmp_path, run.checkpoints / "step-6", tmp_path / "nothing"):
        with pytest.raises(SettingsError, match="expected the --logdir of a run"):
            initial_checkpoint(wrong)


def test_embeddings_and_another_run_may_both_give_initial_values(tmp_path):
    data = SimpleNamespace(source_vocabulary=None, target_vocabulary=None, directory="data",
                           copy_vocabularies=lambda directory: None)
    run = RunDirectory(tmp_path / "run")
    run.save_settings(default_settings())
    save(run.checkpoints / "step-5", {"a": [1, 2]})
    assert initial_values(InitSettings(), data, 1) is None
    both = initial_values(InitSettings(checkpoint=str(run.path), target_embeddings="vectors.npy"), data, 1)
    assert [type(init) for init in both.inits] == [StartFrom, PretrainedEmbeddings]


def test_another_runs_vocabulary_must_be_that_of_the_data(tmp_path):
    def copy_vocabularies(directory):
        (Path(directory) / "source.words").write_text("other")

    data = SimpleNamespace(directory="data", copy_vocabularies=copy_vocabularies)
    run = RunDirectory(tmp_path / "run")
    run.save_settings(default_settings())
    save(run.checkpoints / "step-5", {"a": [1, 2]})
    with pytest.raises(SettingsError, match=r"vocabulary of that run differs from .* data \(source.words differs\)"):
        initial_values(InitSettings(checkpoint=str(run.path), source_embeddings="x"), data, 1)
