"""Architectures by name. Their modules are imported when they are asked for, since they need TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.errors import SettingsError
from towernmt.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel
    from towernmt.train.settings import Settings

ARCHITECTURES = ("transformer",)

__getattr__, __dir__ = lazy_exports(__name__, {
    "interface": ["DecoderState", "NMTModel"],
    "transformer": ["Transformer", "TransformerSettings"],
})


class Architecture(NamedTuple):
    """An architecture: its model class, its settings class and its presets."""

    model: Any
    settings: Any
    presets: dict[str, dict[str, Any]]


def architecture(name: str) -> Architecture:
    """The architecture of that name.

    Raises:
        SettingsError: there is none.
    """
    if name == "transformer":
        from towernmt.models.transformer import PRESETS, Transformer, TransformerSettings

        return Architecture(Transformer, TransformerSettings, PRESETS)
    raise SettingsError(f"--model {name}: choose one of {', '.join(ARCHITECTURES)}.")


def make_model(settings: Settings) -> NMTModel:
    """The model that the settings of a run describe, as a tower function."""
    model: NMTModel = architecture(settings.architecture).model(
        settings.model, settings.optimizer, settings.train.clip_norm)
    return model
