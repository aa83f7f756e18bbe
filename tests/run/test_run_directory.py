"""A run's directory: its settings, and the selection of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.world import World, in_world
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import default_settings


def make_checkpoint(directory: Path, step: int) -> None:
    place = directory / f"step-{step}"
    place.mkdir(parents=True)
    (place / "model.index").write_text("")
    (place / "state.json").write_text("{}")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    for step in (2, 4):
        make_checkpoint(run.checkpoints, step)
    make_checkpoint(run.best, 1)
    (run.best / "record.json").write_text(json.dumps([{"step": 1, "score": 3.0, "metric": "validation_bleu"}]))
    return run


def test_the_best_checkpoint_is_meant_unless_another_is_named(run):
    assert run.checkpoint() == run.checkpoint("best") == str(run.best / "step-1" / "model")
    assert run.checkpoint("last") == str(run.checkpoints / "step-4" / "model")
    assert run.checkpoint("step-2") == str(run.checkpoints / "step-2" / "model")
    assert run.checkpoint("step-1") == str(run.best / "step-1" / "model")
    assert run.checkpoint(str(run.checkpoints / "step-2")) == str(run.checkpoints / "step-2" / "model")


def test_the_last_checkpoint_is_meant_where_there_is_no_best(run):
    (run.best / "record.json").write_text("[]")
    assert run.checkpoint() == str(run.checkpoints / "step-4" / "model")
    with pytest.raises(CheckpointError):
        run.checkpoint("best")


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(run):
    with pytest.raises(CheckpointError, match="'step-3' does not exist; available: step-1, step-2, step-4"):
        run.checkpoint("step-3")
    with pytest.raises(CheckpointError, match="none yet, train first"):
        RunDirectory(run.path.parent / "other").checkpoint()


def test_settings_come_back_as_they_were_saved(run):
    settings = default_settings("transformer", "base")
    settings.train.steps = 12
    assert not run.exists()
    run.save_settings(settings)
    assert run.exists()
    assert RunDirectory(run.path).settings() == settings


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="no run here"):
        RunDirectory(tmp_path).settings()
    with pytest.raises(SettingsError, match="missing.zip: the path does not exist; pass .* or a package"):
        RunDirectory(tmp_path / "missing.zip").settings()


def test_settings_that_this_version_does_not_know_are_refused_with_their_file(run):
    run.save_settings(default_settings())
    run.settings_file.write_text(run.settings_file.read_text() + "other: {thing: 1}\n")
    with pytest.raises(SettingsError, match=r"settings\.yaml: there is no setting 'other.thing'"):
        run.settings()


@pytest.mark.parametrize("name, preset, message", [("transformer", "huge", "tiny, small, base, big"),
                                                   ("tranformer", None, "transformer")])
def test_an_unknown_architecture_or_preset_is_refused_with_those_that_exist(name, preset, message):
    with pytest.raises(SettingsError, match=message):
        default_settings(name, preset)


def test_only_the_chief_looks_at_the_vocabulary_that_it_is_writing(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.vocabulary.mkdir(parents=True)
    (run.vocabulary / "source.words").write_text("half of")
    data = SimpleNamespace(copy_vocabularies=lambda place: (Path(place) / "source.words").write_text("half of it"))
    with in_world(World(1, 2)):
        run.begin(default_settings(), data)
    with in_world(World(0, 2)), pytest.raises(SettingsError, match="contains another vocabulary"):
        run.begin(default_settings(), data)
