"""The architectures by name, built-in and custom: model class, settings class and presets.

The module of an architecture is imported when it is requested, because it needs TensorFlow.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_types
from towernmt.models import model_location, model_settings

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel


def settings_class(maker: Any) -> Any:
    """Return the dataclass of a model's settings, or None.

    It is the class attribute `settings_class`, or the annotation of the field or parameter `settings`, of the class or
    of the nearest parent class that has one of them.

    Args:
        maker: a class, or a function that makes a model.

    Raises:
        SettingsError: the annotation cannot be read.
    """
    if not isinstance(maker, type):
        return _dataclass(getattr(maker, "__annotations__", {}).get("settings"), maker)
    for base in maker.__mro__:
        class_attributes = vars(base)
        if "settings_class" in class_attributes:
            return class_attributes["settings_class"]
        annotations = dict(class_attributes.get("__annotations__", {}))
        if "__dataclass_fields__" not in class_attributes:      # the __init__ of a dataclass only repeats its fields
            annotations = {**getattr(class_attributes.get("__init__"), "__annotations__", {}), **annotations}
        if "settings" in annotations:
            return _dataclass(annotations["settings"], base)
    return None


def presets(kind: Any) -> dict[str, dict[str, Any]]:
    """Return the named settings: the class attribute `presets`, or `PRESETS` of the module of the class.

    A derived class inherits the presets of its parent if its settings are derived from the parent's settings. Presets
    that set a setting which this model does not have are left out.
    """
    settings, bases = settings_class(kind), getattr(kind, "__mro__", [kind])
    names = {field.name for field in dataclasses.fields(settings)} if settings is not None else set()
    presets_by_base = [(base, vars(base).get("presets")) for base in bases]
    presets_by_base += [(base, _namespace(base).get("PRESETS")) for base in bases]
    for base, base_presets in presets_by_base:
        if base_presets is not None and settings is not None and issubclass(settings, settings_class(base) or ()):
            return {name: values for name, values in base_presets.items() if values.keys() <= names}
    return {}


def default_values(kind: Any, name: str) -> Any:
    """Return the default settings of a model.

    Raises:
        SettingsError: the model has no settings, or a setting has no default, or one of an unsupported type.
    """
    settings = settings_class(kind)
    if settings is None:
        raise SettingsError(f"{name} has no settings: annotate its parameter or field `settings` with a dataclass that "
                            "has source_vocab_size, target_vocab_size and the other settings of the model.")
    missing = [field.name for field in dataclasses.fields(settings) if field.init
               and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING]
    if missing:
        raise SettingsError(f"{name}: {settings.__name__}.{missing[0]} has no default: give each setting a default (0 "
                            "for a size that the data determines).")
    defaults = settings()
    check_types(defaults)
    return defaults


def make(kind: Any, name: str, settings: Any) -> NMTModel:
    """Return the model that a class or function makes from settings.

    Args:
        kind: the class or function.
        name: its name in messages.
        settings: settings of the model.

    Raises:
        SettingsError: `kind` has other required parameters, or its result is not an `NMTModel`.
    """
    from towernmt.models.interface import NMTModel

    parameters = inspect.signature(kind).parameters
    required = [p.name for p in parameters.values() if p.default is p.empty
                and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "settings"]
    if required:
        raise SettingsError(f"{name} has the parameter '{required[0]}' without a default, which a run cannot pass: "
                            "give it `settings` as its only parameter, annotated with a dataclass of its settings.")
    model = kind(settings=settings) if "settings" in parameters else kind()
    if not isinstance(model, NMTModel):
        raise SettingsError(f"{name} makes a {type(model).__name__}, which is not a towernmt.models.NMTModel: derive "
                            "it from this class, so that it can be validated and searched.")
    return model


def _dataclass(annotation: Any, owner: Any) -> Any:
    """Return the dataclass that an annotation of `owner` refers to, or None if it is not a dataclass."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, _namespace(owner))
        except (NameError, AttributeError, SyntaxError, TypeError, KeyError) as error:
            raise SettingsError(f"{owner.__qualname__}: the annotation of its settings, '{annotation}', cannot be read "
                                f"({error}): import or define that in its module.") from error
    return annotation if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None


def _namespace(owner: Any) -> dict[str, Any]:
    """Return the names of the module that defines a class or function; {} if they are unknown.

    `sys.modules` may contain a different module of that name, because two runs may have different copies of a package.
    """
    functions = vars(owner).values() if isinstance(owner, type) else [owner]
    for function in functions:
        if inspect.isfunction(function) and function.__module__ == owner.__module__:
            return function.__globals__
    return getattr(sys.modules.get(owner.__module__), "__dict__", {})


_MODULES = {
    "transformer": ("towernmt.models.transformer", "Transformer"),
    "seq2seq": ("towernmt.models.seq2seq", "Seq2Seq"),
    "rnnsearch": ("towernmt.models.rnnsearch", "RNNSearch"),
    "convs2s": ("towernmt.models.convs2s", "ConvS2S"),
}
"""The module and the class of each architecture. `model_settings` contains `<class>Settings` and `<NAME>_PRESETS`."""
ARCHITECTURES = tuple(_MODULES)


class Architecture(NamedTuple):
    """An architecture: its model class, its settings class and its presets."""

    model: Any
    settings: Any
    presets: dict[str, dict[str, Any]]


def architecture(name: str) -> Architecture:
    """Return the architecture with a name.

    Args:
        name: one of `ARCHITECTURES`; or the class of a custom model, or a function that creates it, as FILE.py:CLASS or
            MODULE:CLASS. The settings of a custom model are None if it does not declare their class.

    Raises:
        SettingsError: the architecture does not exist.
    """
    if name in _MODULES:
        module, class_name = _MODULES[name]
        return Architecture(getattr(importlib.import_module(module), class_name),
                            getattr(model_settings, f"{class_name}Settings"), _presets_of(name))
    if ":" not in name:
        raise SettingsError(f"--model {name}: choose one of {', '.join(ARCHITECTURES)}, or name a file or module and "
                            f"what is in it, as {model_location.SHAPES[0]}.")
    return architecture_of(model_location.load_attribute(model_location.find_location(name)))


def settings_and_presets(name: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the default settings and the presets of an architecture. A built-in one needs no TensorFlow.

    Raises:
        SettingsError: the architecture does not exist, or one of its settings has no default.
    """
    if name in _MODULES:
        return getattr(model_settings, f"{_MODULES[name][1]}Settings")(), _presets_of(name)
    kind = architecture(name)
    return default_values(kind.model, name), kind.presets


def _presets_of(name: str) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = getattr(model_settings, f"{name.upper()}_PRESETS")
    return values


def architecture_of(kind: Any) -> Architecture:
    """Return a custom class, or a function that makes a model, with its settings class and presets."""
    return Architecture(kind, settings_class(kind), presets(kind))


def name_of_model(model: Any) -> str:
    """Return the name by which `architecture` finds the class of a model; see `model_location.name_of_class`.

    A model or a class with its own attribute `architecture` (not an inherited one) gets that name. It has the variables
    and the search of the architecture, but may be trained in another way.
    """
    own_name: str | None = vars(model).get("architecture", vars(type(model)).get("architecture"))
    return own_name if own_name is not None else model_location.name_of_class(type(model))


def make_model(name: str, settings: Any) -> NMTModel:
    """Return a model of an architecture.

    Args:
        name: see `architecture`.
        settings: settings of the model, including both vocabulary sizes.

    Raises:
        SettingsError: the architecture does not exist, or its model cannot be made from settings.
    """
    return make(architecture(name).model, name, settings)
