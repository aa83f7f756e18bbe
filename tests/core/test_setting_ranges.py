"""Every setting declares the numbers that it accepts, and one check refuses others before anything is built."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from towernmt.core.errors import SettingsError
from towernmt.core.settings import Range, apply_overrides, check_ranges, flatten, setting
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.corpora import SourceEntry
from towernmt.models import ARCHITECTURES
from towernmt.predict.search.search_settings import StreamSettings
from towernmt.run.run_settings import default_settings

ABSURD = (-10**9, -1, 0, 10**9, 2**64, 99999999999999999999, -0.5, 1.0, 2.0, 1e300, math.inf, -math.inf, math.nan)


def fields_of(settings: Any, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    field_by_key = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            field_by_key.update(fields_of(value, f"{prefix}{field.name}."))
        else:
            field_by_key[prefix + field.name] = field
    return field_by_key


def is_number(field: dataclasses.Field[Any]) -> bool:
    return any(kind in str(field.type) for kind in ("int", "float"))


GROUPS = {"run": default_settings(), **{name: default_settings(name).model for name in ARCHITECTURES},
          "prepare": PrepareSettings(), "translate": StreamSettings(), "source": SourceEntry()}
NUMBERS = [(group, key) for group, settings in GROUPS.items() for key, field in fields_of(settings).items()
           if is_number(field)]


def test_there_are_numeric_settings_to_test() -> None:
    assert len(NUMBERS) > 100


@pytest.mark.parametrize(("group", "key"), NUMBERS, ids=[f"{group}-{key}" for group, key in NUMBERS])
def test_a_setting_takes_the_numbers_of_its_range_and_no_others(group: str, key: str) -> None:
    field = fields_of(GROUPS[group])[key]
    limits: Range = field.metadata["range"]
    assert limits != Range(), f"{key} declares no range"
    largest = 2**63 - 1 if "int" in str(field.type) else 3.4e38
    refused = [value for value in ABSURD if not (limits.holds(value) and abs(value) <= largest)]
    assert refused
    for value in refused:
        with pytest.raises(SettingsError, match=key.split(".")[-1]):
            apply_overrides(GROUPS[group], {key: str(value)})


@pytest.mark.parametrize("settings", GROUPS.values(), ids=GROUPS)
def test_the_defaults_are_in_their_ranges(settings: Any) -> None:
    check_ranges(settings)
    assert flatten(settings)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("model.residual_dropout", "2", "--set: model.residual_dropout=2 must be at least 0 and below 1."),
    ("model.heads", "0", "--set: model.heads=0 must be at least 1 and at most 65536."),
    ("optimizer.learning_rate", "-1", "--set: optimizer.learning_rate=-1 must be above 0."),
    ("train.clip_norm", "inf", "--set: train.clip_norm=inf must be finite and at least 0."),
    ("data.seed", "99999999999999999999",
     f"--set: data.seed=99999999999999999999 must be at most {2**63 - 1}."),
    ("schedule.values", "0.1,-3", "--set: schedule.values=0.1,-3 must be at least 0."),
])
def test_the_message_names_setting_value_and_range(key: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        apply_overrides(default_settings(), {key: value})
    assert str(error.value) == message


def test_all_breaches_of_settings_made_in_python_are_in_one_message() -> None:
    @dataclasses.dataclass
    class Sizes:
        width: int = setting(4, "how wide", at_least=1)
        share: float = setting(0.5, "how much", above=0, at_most=1)
        kind: str = setting("a", "which", choices=("a", "b"))

    with pytest.raises(SettingsError) as error:
        check_ranges(Sizes(0, math.nan, "c"), "model.")
    assert str(error.value) == ("model.width=0 must be at least 1; model.share=nan must be above 0 and at most 1; "
                                "model.kind=c is not one of a, b.")
