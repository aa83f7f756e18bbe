"""The settings that a resumed run takes from `automatic.yaml`, and its report of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, save_yaml
from towernmt.dataflow.batches import mixed_data
from towernmt.run.automatic_settings import apply_automatic_settings
from towernmt.run.changed_limit import DEPENDS_ON_LIMIT, note_of_changed_limit
from towernmt.run.directory import RunDirectory
from towernmt.run.introduction import AutomaticSettingsRecord
from towernmt.run.product_rates import ProductRates
from towernmt.run.resolve import Overrides, SettingsSources, recorded_automatic_settings, resolve_settings
from towernmt.run.rules import model_rules
from towernmt.run.rules.automatic_value import AutomaticSetting
from towernmt.run.run_settings import default_settings
from towernmt.run.training_conditions import TrainingConditions

TEN_MINUTES = {"train.minutes": 10, "checkpoint.minutes": 1, "model.residual_dropout": 0, "optimizer.learning_rate": 1}
CHOSEN = {"--towers": 2, "checkpoint.minutes": 1.0, "model.residual_dropout": 0.0, "optimizer.learning_rate": 1.0,
          "checkpoint.average": 5}


def run_with(path: Path, chosen: dict[str, Any] | None) -> RunDirectory:
    """Write a run with settings and the record of its automatic ones."""
    save_yaml(apply_overrides(default_settings(), TEN_MINUTES), path / "settings.yaml")
    if chosen is not None:
        told = {key: {"value": value, "reason": "it is small"} for key, value in chosen.items()}
        (path / "automatic.yaml").write_text(yaml.safe_dump(told))
    return RunDirectory(path)


@pytest.mark.parametrize(("chosen", "towers"), [(CHOSEN, 2), ({"train.clip_norm": 1}, None), ({}, None), (None, None)])
def test_the_chosen_towers_are_kept(tmp_path, chosen, towers):
    assert recorded_automatic_settings(run_with(tmp_path, chosen)).get("--towers") == towers


@pytest.mark.parametrize("towers", ["two", 0, 1.5, True])
def test_an_edited_number_of_towers_is_one_clear_sentence(tmp_path, towers):
    run = run_with(tmp_path, {"--towers": towers})
    with pytest.raises(SettingsError, match=f"automatic.yaml: --towers has the value {towers!r}, but must be a whole"):
        resolve_settings(SettingsSources(run=run))
    assert resolve_settings(SettingsSources(run=run, towers=3)).towers == 3


@pytest.mark.parametrize(("automatic", "towers"), [("--towers", 2), ("train.clip_norm", 3), ("train.clip_norm", None)])
def test_the_number_of_towers_is_recorded_whether_automatic_or_specified(tmp_path, automatic, towers):
    run = run_with(tmp_path, None)
    AutomaticSettingsRecord([AutomaticSetting(automatic, 2, "it is small")], tmp_path, towers)._before_train()
    assert resolve_settings(SettingsSources(run=run)).towers == towers
    assert resolve_settings(SettingsSources(run=run, towers=7)).towers == 7
    assert resolve_settings(SettingsSources(run=run, gpus=[0])).towers is None


def test_what_was_chosen_by_another_limit_and_stays_is_told(tmp_path):
    """Settings that were specified later, or that do not depend on the limit, are not reported."""
    run = run_with(tmp_path, CHOSEN)
    settings = apply_overrides(default_settings(), {**TEN_MINUTES, "train.minutes": 600, "model.residual_dropout": 0.2})
    assert note_of_changed_limit(recorded_automatic_settings(run), run.settings_like(settings), settings, False) == (
        "train.minutes changed from 10 to 600. These automatic settings keep their old values: checkpoint.minutes=1.0. "
        "Use --set to change them.")


STARTED = {"init.checkpoint": "runs/a", "optimizer.name": "muon"}
NOT_ANOTHER_SHARE = ("data.general_share=0.75 was chosen for the old limit, too, and only a new run can have another "
                     "share.")
RATE, WITHOUT_RATE = ["checkpoint.minutes=1.0", "optimizer.learning_rate=1.0"], ["checkpoint.minutes=1.0"]


@pytest.mark.parametrize(("settings", "chosen", "has_general_data", "names", "advice"), [
    ({**STARTED, "data.general_share": 0.75}, {"data.general_share": 0.75}, True, RATE, NOT_ANOTHER_SHARE),
    ({**STARTED, "data.general_share": 0.5}, {}, True, RATE, ""),         # the share was specified
    ({**STARTED, "data.general_share": 0.75}, {}, True, WITHOUT_RATE, ""),      # at which the rate is always the same
    ({**STARTED, "data.general_share": 0.5}, {}, False, WITHOUT_RATE, ""),
    ({**STARTED, "optimizer.name": "adam"}, {}, True, WITHOUT_RATE, ""),     # whose rate does not depend on the passes
    ({**STARTED, "init.checkpoint": ""}, {"data.general_share": 0.5}, True, WITHOUT_RATE, ""),
    ({"schedule.name": "noam"}, {"schedule.warmup_steps": 4000}, False, ["schedule.warmup_steps=4000", *RATE], ""),
    ({"schedule.name": "noam"}, {}, False, WITHOUT_RATE, "")])
def test_settings_that_depend_on_the_passes_over_general_text_or_on_the_warm_up_are_reported(
        tmp_path, settings, chosen, has_general_data, names, advice):
    run = run_with(tmp_path, {**CHOSEN, **chosen})
    old = apply_overrides(default_settings(), {**TEN_MINUTES, **settings})
    save_yaml(old, run.path / "settings.yaml")
    new = apply_overrides(old, {"train.minutes": 600, "model.residual_dropout": 0.2})
    assert note_of_changed_limit(recorded_automatic_settings(run), old, new, has_general_data) == (
        f"train.minutes changed from 10 to 600. These automatic settings keep their old values: {', '.join(names)}. "
        f"Use --set to change them. {advice}".rstrip())


@pytest.mark.parametrize(("share", "rates"), [(0.5, 2), (0.75, 1)])
def test_the_rate_depends_on_the_limit_at_the_shares_at_which_it_is_reported(monkeypatch, share, rates):
    monkeypatch.setattr(model_rules, "settings_of_initial_run", lambda settings: iter(()))
    found = automatic_values({**STARTED, "data.general_share": share}, is_mixed=True)
    assert len({values["optimizer.learning_rate"] for values in found}) == rates


@pytest.mark.parametrize("has_general_data", [True, False])
def test_the_data_of_a_resumed_run_show_whether_its_rate_depends_on_the_limit(tmp_path, monkeypatch, has_general_data):
    run = run_with(tmp_path, CHOSEN)
    save_yaml(apply_overrides(default_settings(), {**TEN_MINUTES, **STARTED}), run.path / "settings.yaml")
    data = SimpleNamespace(translated=False) if has_general_data else SimpleNamespace()
    monkeypatch.setattr(mixed_data, "MixedData", SimpleNamespace if has_general_data else str)
    resolved = resolve_settings(SettingsSources(
        run=run, open_data=lambda: data, overrides=(Overrides("--set", {"train.minutes": 600}),)))
    assert ("optimizer.learning_rate=1.0" in resolved.notes[0]) == has_general_data


def test_only_the_share_of_general_text_and_the_rate_depend_on_the_limit_besides(monkeypatch):
    monkeypatch.setattr(model_rules, "settings_of_initial_run", lambda settings: iter(()))
    found = automatic_values({"init.checkpoint": "runs/a", "optimizer.name": "muon"}, is_mixed=True)
    assert changing_keys(found) - set(DEPENDS_ON_LIMIT) == {"optimizer.learning_rate", "data.general_share"}


@pytest.mark.parametrize(("old", "new"), [("budget", "noam"), ("noam", "budget")])
def test_a_resumed_run_changes_to_or_from_noam_only_with_a_new_rate(tmp_path, old, new):
    """The learning rate of noam is a factor, about a thousand times the highest rate of the other schedules."""
    run = run_with(tmp_path, CHOSEN)
    save_yaml(apply_overrides(default_settings(), {**TEN_MINUTES, "schedule.name": old}), run.path / "settings.yaml")
    with pytest.raises(SettingsError, match=f"schedule.name changed from {old} to {new}, .*learning_rate=... too"):
        resolve_settings(SettingsSources(run=run, overrides=(Overrides("--set", {"schedule.name": new}),)))
    changes = Overrides("--set", {"schedule.name": new, "optimizer.learning_rate": 2})
    assert resolve_settings(SettingsSources(run=run, overrides=(changes,))).settings.schedule.name == new
    assert resolve_settings(SettingsSources(run=run)).settings.schedule.name == old


@pytest.mark.parametrize("change", [{"init.embeddings": "cooccurrence"}, {"init.checkpoint": ""},
                                    {"init.source_embeddings": "vectors.npy"}])
def test_other_initial_values_are_refused_if_the_run_has_begun(tmp_path, change):
    run = run_with(tmp_path, CHOSEN)
    save_yaml(apply_overrides(default_settings(), {"init.checkpoint": "runs/a"}), run.path / "settings.yaml")
    with pytest.raises(SettingsError, match=f"{next(iter(change))}=.* is for new runs, .* leave it out to resume"):
        resolve_settings(SettingsSources(run=run, overrides=(Overrides("--set", change),)))
    same = Overrides("--set", {"init.checkpoint": "runs/a", "train.steps": 3})
    assert resolve_settings(SettingsSources(run=run, overrides=(same,))).settings.init.checkpoint == "runs/a"
    (run.path / "automatic.yaml").unlink()      # the run has not begun
    assert resolve_settings(SettingsSources(run=run, overrides=(Overrides("--set", change),))).settings.init


@pytest.mark.parametrize(("chosen", "minutes"), [(CHOSEN, 10), (None, 600), ({"--towers": 2}, 600)])
def test_nothing_is_told_of_the_same_limit_or_where_nothing_was_chosen_by_it(tmp_path, chosen, minutes):
    run = run_with(tmp_path, chosen)
    settings = apply_overrides(default_settings(), {**TEN_MINUTES, "train.minutes": minutes})
    assert note_of_changed_limit(recorded_automatic_settings(run), run.settings_like(settings), settings, False) == ""


def test_all_that_is_chosen_by_a_limit_is_among_what_is_told():
    assert changing_keys(automatic_values({})) == set(DEPENDS_ON_LIMIT)


def automatic_values(specified: dict[str, Any], **conditions: Any) -> list[dict[str, Any]]:
    """Return the automatic settings with several limits."""
    at = TrainingConditions(target_tokens=100_000, pairs=10_000, vocabulary=8000, unigram=True, validation_pairs=1000,
                            gpus=0, processors=2, bfloat16=True, rates=ProductRates(2.8e11, 8e11), **conditions)
    limits: tuple[dict[str, Any], ...] = (
        {}, {"train.minutes": 1}, {"train.minutes": 200}, {"train.steps": 100}, {"train.epochs": 50})
    return [{choice.key: choice.value for choice in apply_automatic_settings(
        apply_overrides(default_settings(), values), at, set(values))[1]}
        for values in ({**specified, **limit} for limit in limits)]


def changing_keys(found: list[dict[str, Any]]) -> set[str]:
    """Return the keys whose values are not always equal."""
    keys = {key for one in found for key in one}
    return {key for key in keys if len({one.get(key) for one in found}) > 1}
