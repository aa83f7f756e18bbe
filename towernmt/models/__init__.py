"""Architectures by name: those that are here, and models of one's own.

Their modules are imported when they are asked for, since they need TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.lazy_exports import lazy_exports
from towernmt.models.registry import locate, model_class

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel

_CLASSES = {
    "transformer": ("transformer.model", "transformer.settings", "Transformer"),
    "seq2seq": ("recurrent.seq2seq", "recurrent.seq2seq_settings", "Seq2Seq"),
    "rnnsearch": ("recurrent.rnnsearch", "recurrent.rnnsearch_settings", "RNNSearch"),
    "convs2s": ("convs2s.model", "convs2s.settings", "ConvS2S"),
}
"""For each name of an architecture: its module, that of its `<class>Settings`, and its class."""
ARCHITECTURES = tuple(_CLASSES)

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "interface": ["DecoderState", "NMTModel"],
    "layers.projections": ["Projection"],
    **{module: [name] for module, _, name in _CLASSES.values()},
    **{module: [f"{name}Settings"] for _, module, name in _CLASSES.values()},

})
__all__ += ["ARCHITECTURES", "Architecture", "architecture", "architecture_of", "make_model", "name_of_model",
            "settings_and_presets"]


class Architecture(NamedTuple):
    """An architecture: its model class, its settings class and its presets."""

    model: Any
    settings: Any
    presets: dict[str, dict[str, Any]]


def architecture(name: str) -> Architecture:
    """The architecture of that name.

    Args:
        name: one of `ARCHITECTURES`; or of one's own, FILE.py:CLASS or MODULE:CLASS, a function that makes a model will
            do as well. The settings are None if it does not say which it has.
    Raises:
        SettingsError: there is none.
    """
    if name in _CLASSES:
        module_name, _, class_name = _CLASSES[name]
        module = importlib.import_module(f"{__name__}.{module_name}")
        return Architecture(getattr(module, class_name), getattr(module, f"{class_name}Settings"), module.PRESETS)
    if ":" not in name:
        raise SettingsError(f"--model {name}: choose one of {', '.join(ARCHITECTURES)}, or name a file or module and "
                            f"what is in it, as {locate.SHAPES[0]}.")
    return architecture_of(locate.load(locate.find_place(name)))


def settings_and_presets(name: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """The default settings of an architecture and its presets; of those that are here without TensorFlow.

    Raises:
        SettingsError: as `architecture`, or one of its settings has no default.
    """
    if name in _CLASSES:
        _, module_name, class_name = _CLASSES[name]
        module = importlib.import_module(f"{__name__}.{module_name}")
        return getattr(module, f"{class_name}Settings")(), module.PRESETS
    kind = architecture(name)
    return model_class.default_values(kind.model, name), kind.presets


def architecture_of(kind: Any) -> Architecture:
    """A class of one's own (or a function that makes a model), with its settings class, or None, and its presets."""
    return Architecture(kind, model_class.settings_class(kind), model_class.presets(kind))


def name_of_model(model: Any) -> str:
    """The name by which `architecture` finds the class of a model again; see `locate.name_of_class`.

    A model, or its class, that has the attribute `architecture` itself, not from another class, is called that: it is
    trained in another way than the model of that name, but has its variables and is searched as it is.
    """
    own: str | None = vars(model).get("architecture", vars(type(model)).get("architecture"))
    return own if own is not None else locate.name_of_class(type(model))


def make_model(name: str, settings: Any, **handed: Any) -> NMTModel:
    """The model of an architecture, as a tower function.

    Args:
        name: as `architecture` takes it.
        settings: of the model: sizes, with those of the vocabularies set.
        handed: what else the model gets; see `model_class.make`.
    Raises:
        SettingsError: there is none of that name, or it cannot be made from settings.
    """
    return model_class.make(architecture(name).model, name, settings, **handed)
