"""Specified settings without effect are refused or reported."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from towernmt.callbacks.learning_rate import ReduceOnPlateau
from towernmt.callbacks.schedules import PLATEAU, RATES, ScheduleSettings
from towernmt.cli.main import main
from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, flatten, save_yaml
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.training_data import with_general_data
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.optim.optimizer import MAKERS
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.run.ineffective_settings import CONDITIONS
from towernmt.run.resolve import Overrides, SettingsSources, read_config, resolve_settings
from towernmt.run.run_settings import Settings, default_settings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Return prepared pairs without validation text."""
    place = tmp_path_factory.mktemp("data")
    for side in ("source", "target"):
        (place / side).write_text("a b\nb a\n" * 10)
    assert main(["prepare", "--source", str(place / "source"), "--target", str(place / "target"), "--vocab-kind",
                 "word", "--shared-vocab", "--output", str(place / "prepared"), "--workers", "1"]) == 0
    return PreparedData(place / "prepared")


def resolved(data: Any, *overrides: Overrides, **sources: Any) -> list[str]:
    """Return the notes of resolved settings."""
    return resolve_settings(SettingsSources(overrides=overrides, open_data=lambda: data, **sources)).notes


def assigned(**values: Any) -> Overrides:
    """Return values of the command line; `optimizer__name` stands for `optimizer.name`."""
    return Overrides("--set", {key.replace("__", "."): value for key, value in values.items()})


@pytest.mark.parametrize(("specified", "message"), [
    ({"data.general_share": "0.5"},
     "data.general_share=0.5 has no effect without --general: pass --general with prepared data, or leave it out."),
    ({"optimizer.muon_interval": "3", "optimizer.name": "adam"},
     "optimizer.muon_interval=3 has no effect with optimizer.name=adam: set optimizer.name to muon, or leave it out."),
    ({"schedule.decay_steps": "1000"},
     "schedule.decay_steps=1000 has no effect with schedule.name=inverse_square_root: set schedule.name to linear, "
     "cosine or exponential, or leave it out."),
    ({"schedule.name": "piecewise", "schedule.values": "0.1", "optimizer.learning_rate": "0.1"},
     "optimizer.learning_rate=0.1 has no effect with schedule.name=piecewise: set schedule.values, or leave it out."),
    ({"validation.steps": "0", "train.stop_patience": "3"},
     "train.stop_patience=3 has no effect with validation.steps=0 and validation.minutes=0.0: set one of them above "
     "0, or leave it out."),
    ({"train.stop_patience": "3"},
     "train.stop_patience=3 has no effect without --valid-source: prepare the data with validation text, or leave it "
     "out."),
    ({"data.window": "1000"},
     "data.window=1000 has no effect with data.subword_sampling=false and data.modifiers=[]: set one of them, or leave "
     "it out."),
    ({"init.left_out": "/lhuc$"},
     "init.left_out=[/lhuc$] has no effect without init.checkpoint: pass --start, or set init.checkpoint, or leave "
     "it out.")])
def test_a_setting_of_the_command_line_without_effect_is_refused(data: PreparedData, specified: dict[str, str],
                                                                 message: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolved(data, Overrides("--set", specified))
    assert str(error.value) == f"--set: {message}"


@pytest.mark.parametrize("specified", [
    {"data.general_share": "0"}, {"optimizer.muon_interval": "3", "optimizer.name": "muon"},
    {"schedule.decay_steps": "1000", "schedule.name": "cosine"}, {"validation.metric": "loss"},
    {"data.window": "1000", "data.modifiers": "upper=0.1"}, {"data.modifier_languages": "tr-en"},
    {"validation.steps": "0", "train.stop_patience": "0", "checkpoint.keep_best": "2"}])
def test_settings_with_an_effect_and_settings_that_turn_something_off_are_accepted(
        data: PreparedData, specified: dict[str, str]) -> None:
    assert resolved(data, Overrides("--set", specified)) == []


def test_the_share_of_general_data_has_an_effect_with_general_data(data: PreparedData) -> None:
    assert resolved(with_general_data(data, data.directory), assigned(data__general_share=0.3)) == []


def test_automatic_values_decide_whether_a_setting_has_an_effect(data: PreparedData, monkeypatch: pytest.MonkeyPatch
                                                                 ) -> None:
    monkeypatch.setattr("towernmt.run.resolve.product_rates", lambda gpus: None)
    limited = assigned(train__steps=9, schedule__end_learning_rate=1e-5, optimizer__muon_scale=0.1)
    assert resolved(data, limited, defaults="automatic") == []
    with pytest.raises(SettingsError, match="muon_scale=0.1 has no effect with optimizer.name=adam"):
        resolved(data, limited)


def test_settings_of_a_file_without_effect_are_reported_unless_they_are_defaults(data: PreparedData, tmp_path: Path
                                                                                 ) -> None:
    """The recorded settings of a run contain every setting."""
    save_yaml(apply_overrides(default_settings(), {"data.general_share": 0.7, "optimizer.name": "muon",
                                                   "optimizer.weight_decay": 0.1}), tmp_path / "settings.yaml")
    file = read_config(tmp_path / "settings.yaml")
    assert resolved(data, file, assigned(optimizer__name="adam")) == [
        f"{file.origin}: data.general_share=0.7 has no effect without --general: pass --general with prepared data to "
        "use it.",
        f"{file.origin}: optimizer.weight_decay=0.1 has no effect with optimizer.name=adam: set optimizer.name to "
        "adamw, lamb or muon to use it."]
    with pytest.raises(SettingsError, match="^--set: data.general_share=0.7 has no effect"):
        resolved(data, file, assigned(data__general_share=0.7))


def test_the_conditions_name_settings() -> None:
    keys = {*flatten(Settings())}
    for condition in CONDITIONS:
        named = {*condition.keys.split(), *(condition.causes.split() if "--" not in condition.causes else [])}
        assert named <= keys


def without_effect(cause: str, value: str) -> set[str]:
    """Return the settings that have no effect with a value of another setting."""
    values = flatten(apply_overrides(default_settings(), {cause: value}))
    data: Any = None
    return {key for condition in CONDITIONS if condition.causes == cause and not condition.holds(values, data)
            for key in condition.keys.split()}


@pytest.mark.parametrize("name", [*RATES, PLATEAU])
def test_a_schedule_uses_the_settings_that_are_reported_for_others_only(name: str) -> None:
    names = {*ScheduleSettings.__dataclass_fields__} - {"name"}
    used = {*inspect.signature(RATES.get(name, ReduceOnPlateau)).parameters}
    unused = {f"schedule.{field}" for field in names - used}
    if not used & {"learning_rate", "scale"}:
        unused.add("optimizer.learning_rate")
    assert without_effect("schedule.name", name) == unused


class ReadSettings:
    """Settings of the optimizer that record the names of those that are read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(OptimizerSettings(), name)


@pytest.mark.parametrize("name", MAKERS)
def test_an_optimizer_uses_the_settings_that_are_reported_for_others_only(name: str) -> None:
    names, settings = {*OptimizerSettings.__dataclass_fields__} - {"name", "learning_rate", "ema_decay"}, ReadSettings()
    with tf.Graph().as_default():
        MAKERS[name](settings, 0.1)  # type: ignore[arg-type]
    unused = {f"optimizer.{field}" for field in names - settings.names}
    assert without_effect("optimizer.name", name) == unused
