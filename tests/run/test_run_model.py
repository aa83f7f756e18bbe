"""The recorded model of a run, and the errors if the model is different, changed or missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from towernmt.checkpoint.checkpoint_files import state_text
from towernmt.core.errors import SettingsError
from towernmt.run.directory import RunDirectory, why_model_not_found
from towernmt.run.resolve import Overrides, SettingsSources, read_config, resolve_settings
from towernmt.run.run_settings import Settings, default_settings

MODEL = """
from towernmt.models import Transformer

class Mine(Transformer):
    pass

def make(settings):
    return Mine(settings)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path / "mine.py"


@pytest.fixture
def run(file: Path, tmp_path: Path) -> RunDirectory:
    """Write a run of this model with a checkpoint."""
    run = RunDirectory(tmp_path / "run")
    run.save_settings(default_settings(f"{file}:Mine"))
    add_checkpoint(run, weights=["a"])
    return run


def add_checkpoint(run: RunDirectory, **state: object) -> None:
    place = run.checkpoints / "step-1"
    place.mkdir(parents=True)
    (place / "model.index").write_text("")
    (place / "state.json").write_text(state_text({"step": 1, "position": None, "callbacks": {}, **state}))


def test_a_run_finds_its_model_without_the_file(run, file):
    file.unlink()
    settings = run.settings()
    assert settings.architecture == f"{run.code.resolve()}/mine.py:Mine"
    settings.train.steps = 7
    run.save_settings(settings)                     # as when it resumes
    assert RunDirectory(run.path).settings() == settings


def test_settings_of_another_run_take_the_code_with_them(run, file, tmp_path):
    file.unlink()
    other = RunDirectory(tmp_path / "other")
    other.save_settings(run.settings())
    assert (other.code / "mine.py").read_bytes() == (run.code / "mine.py").read_bytes()
    assert "architecture: mine.py:Mine\n" in other.settings_file.read_text()


def test_code_that_has_changed_is_not_recorded_for_the_checkpoints_of_the_old(run, file):
    file.write_text(MODEL + "# more")
    with pytest.raises(SettingsError, match=rf"{file} has changed since {run.path} began: leave out --model"):
        run.save_settings(default_settings(f"{file}:Mine"))
    assert (run.code / "mine.py").read_text() == MODEL


def test_before_there_is_a_checkpoint_the_code_may_change(file, tmp_path):
    run = RunDirectory(tmp_path / "run")
    for text in (MODEL, MODEL + "# more"):
        file.write_text(text)
        run.save_settings(default_settings(f"{file}:Mine"))
        assert (run.code / "mine.py").read_text() == text


@pytest.mark.parametrize("name", ["rnnsearch", "Mine of __main__"])
def test_another_model_is_refused_by_name(run, name):
    with pytest.raises(SettingsError, match=f"holds a run of the model mine.py:Mine, not of {name}: leave out --model"):
        run.check_model(name)


def test_a_model_without_settings_is_recorded_without(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.save_settings(Settings("Mine of __main__", None))
    assert run.settings_like(Settings("Mine of __main__", None)).model is None
    with pytest.raises(SettingsError, match="does not contain the code of its model Mine of __main__"):
        run.settings()


@dataclasses.dataclass
class Other:
    other: int = 0


@pytest.mark.parametrize("name, model, reason", [
    ("transformer", None, ""), ("{file}:Mine", "its", ""), ("Mine of __main__", None, "cannot be found again: define"),
    ("{file}:Mine", Other(), "cannot be made from the run's settings: annotate"),
    ("{file}:make", "its", "cannot be made"),
    ("{file}:Gone", None, "has no 'Gone'")])
def test_a_run_whose_model_will_be_lost_is_told_so_when_it_begins(file, name, model, reason):
    settings = Settings(name.format(file=file), default_settings().model if model == "its" else model)
    assert bool(why_model_not_found(settings)) == bool(reason) and reason in why_model_not_found(settings)


def test_the_settings_of_a_run_are_used_for_another_requested_model(run, tmp_path):
    settings = default_settings("transformer", "small")
    RunDirectory(tmp_path / "base").save_settings(settings)
    config = read_config(tmp_path / "base" / "settings.yaml")
    name = f"{tmp_path / 'mine.py'}:Mine"
    found = resolve_settings(SettingsSources(model=name, overrides=(config,))).settings
    assert (found.architecture, found.model) == (name, settings.model)


def test_a_model_is_requested_by_the_option_alone(run, tmp_path):
    custom = read_config(run.settings_file)
    with pytest.raises(SettingsError, match=r"settings.yaml has the settings of the model mine.py:Mine: pass --model"):
        resolve_settings(SettingsSources(overrides=(custom,)))
    with pytest.raises(SettingsError, match="^--set: architecture=rnnsearch is the name of another model"):
        resolve_settings(SettingsSources(overrides=(Overrides("--set", {"architecture": "rnnsearch"}),)))
    assert resolve_settings(SettingsSources(run=run, overrides=(custom,))).settings == run.settings()
