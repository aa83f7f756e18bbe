"""Freezing variables by patterns on their names."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf
from towernmt.optim.optimizer import TrainedVariables
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.run.directory import RunDirectory
from towernmt.run.resume import check_resumable
from towernmt.run.run_settings import TrainSettings, default_settings

NAMES = ["t/encoder/kernel", "t/encoder/lhuc", "t/decoder/kernel", "t/decoder/lhuc", "t/embedding"]


def gradients() -> list:
    return [(name, SimpleNamespace(op=SimpleNamespace(name=name), shape=tf.TensorShape([2, 3]))) for name in NAMES]


@pytest.mark.parametrize("only, freeze, expected", [
    ([], [], NAMES), (["/lhuc$"], [], ["t/encoder/lhuc", "t/decoder/lhuc"]), ([], ["encoder", "embedding"], NAMES[2:4]),
    (["decoder", "embedding"], ["lhuc"], ["t/decoder/kernel", "t/embedding"])])
def test_patterns_choose_what_is_trained(only, freeze, expected):
    assert [name for name, _ in TrainedVariables(only, freeze).choose(gradients())] == expected


@pytest.mark.parametrize("only, freeze, sentence", [
    (["nothing"], [], "train.only=nothing matches no trainable variable: they are named like t/encoder/kernel"),
    ([], ["encodr"], "train.freeze=encodr matches no"), (["lhuc"], ["t/"], "leave no variable to train"),
    (["("], [], r"train.only=\(: not a regular expression")])
def test_a_choice_that_cannot_work_is_refused(only, freeze, sentence):
    with pytest.raises(SettingsError, match=sentence):
        TrainedVariables(only, freeze).choose(gradients())


def test_a_run_that_has_checkpoints_keeps_its_choice(tmp_path):
    run, settings = RunDirectory(tmp_path), default_settings()
    run.save_settings(settings)
    run.checkpoints.mkdir()
    check_resumable(run, settings)
    model = dataclasses.replace(settings.model, r_drop_alpha=1.0, guided_alignment_weight=0.1)
    check_resumable(run, dataclasses.replace(settings, model=model))     # without effect on the content of checkpoints
    changed = dataclasses.replace(settings, train=TrainSettings(freeze=["encoder"]))
    with pytest.raises(SettingsError, match=r"holds a run with train.freeze=\[\], not \['encoder'\]"):
        check_resumable(run, changed)


def test_an_interval_of_muon_whose_slots_are_missing_is_refused(tmp_path):
    run = RunDirectory(tmp_path)
    each, others = (dataclasses.replace(default_settings(), optimizer=OptimizerSettings(name="muon", muon_interval=n))
                    for n in (1, 2))
    run.save_settings(each)
    run.checkpoints.mkdir()
    with pytest.raises(SettingsError, match=r"holds a run with optimizer.muon_interval=1, not 2"):
        check_resumable(run, others)
    run.save_settings(others)
    check_resumable(run, each)
