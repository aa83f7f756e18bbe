"""Former keys of settings: what they mean now, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from towernmt.checkpoint import former_settings
from towernmt.core.errors import SettingsError
from towernmt.core.former_settings import FormerSettings, Removed
from towernmt.core.settings import all_keys, apply_overrides, flatten, setting
from towernmt.run.settings import default_settings


@dataclass
class Data:
    tokens: int = setting(4, "how many")


@dataclass
class Own:
    tokens: int = setting(9, "a setting whose name was once one of ours")


@dataclass
class Outer:
    data: Data = field(default_factory=Data)
    train: Any = None
    former: ClassVar[FormerSettings] = FormerSettings(
        {"train.tokens": "data.tokens"},
        {"train.growth": Removed(2000, "leave it out"), "train.fast": Removed(True, "leave it out"),
         "train.kind": Removed("a", "take another optimizer")},
        switches={"train.tokens": (8, 2)})


def test_a_former_key_sets_the_setting_of_today() -> None:
    assert apply_overrides(Outer(), {"train.tokens": "7"}).data.tokens == 7


@pytest.mark.parametrize(("value", "today"), [("yes", 8), (True, 8), ("false", 2), (False, 2), ("7", 7)])
def test_a_former_switch_sets_the_value_of_today(value: Any, today: int) -> None:
    assert apply_overrides(Outer(), {"train.tokens": value}).data.tokens == today


def test_a_key_that_the_settings_have_means_that_setting() -> None:
    changed = apply_overrides(Outer(train=Own()), {"train.tokens": 7})
    assert (changed.data.tokens, changed.train.tokens) == (4, 7)


def test_a_setting_by_both_its_names_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^mine.yaml: train.tokens is the former name of data.tokens, and both"):
        apply_overrides(Outer(), {"train.tokens": 7, "data.tokens": 7}, "mine.yaml")


@pytest.mark.parametrize(("key", "value"), [
    ("train.growth", "2000"), ("train.growth", 2000.0), ("train.fast", "yes"), ("train.fast", True),
    ("train.kind", "a")])
def test_a_removed_setting_at_the_value_that_holds_is_dropped(key: str, value: Any) -> None:
    assert apply_overrides(Outer(), {key: value}) == Outer()


@pytest.mark.parametrize(("key", "value", "advice"), [
    ("train.growth", "2001", "leave it out"), ("train.growth", "x", "leave it out"),
    ("train.fast", "no", "leave it out"), ("train.kind", "b", "take another optimizer")])
def test_a_removed_setting_at_another_value_is_refused_with_what_to_do(key: str, value: Any, advice: str) -> None:
    with pytest.raises(SettingsError, match=rf"^--set: {key}={value} is refused, .* removed .*: {advice}\.$"):
        apply_overrides(Outer(), {key: value})


def test_a_mistyped_former_key_is_answered_with_the_key_of_today() -> None:
    with pytest.raises(SettingsError, match="no setting 'train.tokns'. Did you mean 'data.tokens'"):
        apply_overrides(Outer(), {"train.tokns": 7})


def test_the_note_tells_new_names_alone() -> None:
    known = all_keys(Outer())
    note = Outer.former.note(["data.tokens", "train.tokens", "train.growth"], known)
    assert note == "train.tokens is now data.tokens."
    assert Outer.former.note(["data.tokens", "train.growth"], known) == ""


def test_every_former_key_of_a_run_names_a_setting_of_today() -> None:
    settings = default_settings()
    values = flatten(settings)
    for old, new in former_settings.FORMER.renamed.items():
        assert old not in values and new in values
        assert apply_overrides(settings, {old: values[new]}) == settings
    for old, removed in former_settings.FORMER.removed.items():
        assert apply_overrides(settings, {old: removed.value}) == settings and removed.advice
