"""Architectures by name. Their modules are imported when they are asked for, since they need TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.errors import SettingsError
from towernmt.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel
    from towernmt.train.settings import Settings

_CLASSES = {
    "transformer": ("transformer", "Transformer"),
    "seq2seq": ("seq2seq", "Seq2Seq"),
    "rnnsearch": ("rnnsearch", "RNNSearch"),
    "convs2s": ("convs2s", "ConvS2S"),
}
"""For each name of an architecture: its module, and its class; the settings are `<class>Settings`."""
ARCHITECTURES = tuple(_CLASSES)

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "interface": ["DecoderState", "NMTModel"],
    **{module: [name, f"{name}Settings"] for module, name in _CLASSES.values()},
    "tower_rules": ["Breach", "check_tower", "check_tower_function"],
})
__all__ += ["ARCHITECTURES", "Architecture", "architecture", "make_model"]


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
    if name not in _CLASSES:
        raise SettingsError(f"--model {name}: choose one of {', '.join(ARCHITECTURES)}.")
    module_name, class_name = _CLASSES[name]
    module = importlib.import_module(f"{__name__}.{module_name}")
    return Architecture(getattr(module, class_name), getattr(module, f"{class_name}Settings"), module.PRESETS)


def make_model(settings: Settings) -> NMTModel:
    """The model that the settings of a run describe, as a tower function."""
    model: NMTModel = architecture(settings.architecture).model(
        settings.model, settings.optimizer, settings.train.clip_norm)
    return model
