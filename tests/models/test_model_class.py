"""The declarations of a model class: its settings, also if inherited or annotated as text; presets; making a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from towernmt.core.errors import SettingsError
from towernmt.models import Transformer, TransformerSettings, architecture_of
from towernmt.models.architectures import default_values, make, presets, settings_class
from towernmt.models.interface import NMTModel
from towernmt.models.model_settings import TRANSFORMER_PRESETS
from towernmt.run.directory import model_from_settings
from towernmt.run.run_settings import default_settings, settings_of_model

PRESETS = TRANSFORMER_PRESETS     # presets of the models of this module


@dataclass(frozen=True)
class Own(TransformerSettings):
    extra: int = 3


@dataclass(frozen=True)
class Bare:
    source_vocab_size: int = 0
    target_vocab_size: int = 0


class Plain(Transformer):
    pass


class Annotated(Transformer):
    settings: Own


@dataclass
class Decorated(Transformer):
    note: str = ""


class Attribute(Transformer):
    settings_class = Own
    presets = {"mine": {"extra": 4}}


class Below(Attribute):
    pass


class Scratch(NMTModel):
    def __init__(self, settings: Bare):
        self.settings = settings
        self.source_vocab_size, self.target_vocab_size = settings.source_vocab_size, settings.target_vocab_size

    encode = decode_hidden = output_projection = start_state = decode_step = None


class Unannotated(Scratch):
    def __init__(self, settings):
        super().__init__(settings)


class Silent(NMTModel):
    def __init__(self, settings):
        self.settings = settings


class Needy(Scratch):
    def __init__(self, settings: Bare, table: str):
        super().__init__(settings)


class Untold(Scratch):
    def __init__(self, settings: NowhereDefined):  # noqa: F821
        super().__init__(settings)


@dataclass
class Without:
    source_vocab_size: int


@dataclass
class Mapped:
    widths: dict[str, int] = field(default_factory=lambda: {"a": 1})


def function(settings: Bare) -> NMTModel:
    return Scratch(settings)


@pytest.mark.parametrize("kind, settings", [
    (Transformer, TransformerSettings), (Plain, TransformerSettings), (Decorated, TransformerSettings),
    (Annotated, Own), (Attribute, Own), (Below, Own), (Scratch, Bare), (Unannotated, Bare), (function, Bare),
    (Silent, None)])
def test_the_settings_are_those_of_the_nearest_class_that_declares_them(kind, settings):
    assert settings_class(kind) is settings


def test_presets_are_the_classs_or_those_of_a_parent_whose_settings_it_has():
    assert presets(Plain) == presets(Annotated) == TRANSFORMER_PRESETS
    assert presets(Below) == {"mine": {"extra": 4}}
    assert presets(Silent) == {}
    assert presets(Scratch) == {"tiny": {}}         # those of this module's presets that fit its settings


@pytest.mark.parametrize("kind, message", [
    (Silent, "own.py:X has no settings: annotate"),
    (Untold, "Untold: the annotation of its settings, 'NowhereDefined', cannot be read")])
def test_a_model_without_declared_settings_is_refused(kind, message):
    with pytest.raises(SettingsError, match=message):
        default_values(kind, "own.py:X")


def test_a_setting_without_a_default_is_refused():
    with pytest.raises(SettingsError, match="Without.source_vocab_size has no default"):
        default_values(type("X", (), {"settings_class": Without}), "own.py:X")


def test_a_setting_of_a_type_that_a_run_cannot_save_is_refused():
    with pytest.raises(SettingsError, match="Mapped.widths: {'a': 1} as a setting of the type dict"):
        default_values(type("X", (), {"settings_class": Mapped}), "own.py:X")


def test_a_class_or_a_function_makes_a_model_from_settings():
    for kind in (Scratch, function):
        assert make(kind, "x", Bare(8, 9)).target_vocab_size == 9


@pytest.mark.parametrize("kind, message", [
    (Needy, "x has the parameter 'table' without a default"),
    (lambda settings: 3, "makes a int, which is not a towernmt.models.NMTModel")])
def test_a_class_that_cannot_be_made_from_settings_is_refused(kind, message):
    with pytest.raises(SettingsError, match=message):
        make(kind, "x", Bare(8, 8))


def test_the_settings_of_a_model_by_hand_name_its_class_whatever_it_is_made_from():
    model: Any = Scratch(Bare(8, 9))
    settings = settings_of_model(model)
    assert settings.architecture.endswith("test_model_class.py:Scratch") and settings.model == Bare(8, 9)
    model.settings = "none"
    assert settings_of_model(model).model is None


def test_a_variant_is_recorded_as_its_parent_only_if_it_declares_so():
    sizes = TransformerSettings(source_vocab_size=8, target_vocab_size=8)
    assert settings_of_model(Transformer(sizes)).architecture == "transformer"
    assert settings_of_model(Plain(sizes)).architecture.endswith("test_model_class.py:Plain")
    otherwise = type("Otherwise", (Plain,), {"architecture": "transformer"})
    assert settings_of_model(otherwise(sizes)).architecture == "transformer"


def test_defaults_presets_and_models_come_from_a_name():
    name = f"{__file__}:Attribute"
    settings = default_settings(name, "mine")
    assert settings.model.extra == 4 and settings.architecture == name
    settings.model = type(settings.model)(source_vocab_size=8, target_vocab_size=8)
    assert type(model_from_settings(settings)).__name__ == "Attribute"
    with pytest.raises(SettingsError, match="has the presets mine"):
        default_settings(name, "tiny")
    assert architecture_of(Plain).settings is TransformerSettings
