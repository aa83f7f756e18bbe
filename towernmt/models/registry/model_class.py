"""What a model's class says of itself: the dataclass of its settings, its presets, and how it is made from settings."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.models.interface import NMTModel


def settings_class(kind: Any) -> Any:
    """The dataclass of a model's settings, or None.

    It is the class attribute `settings_class`, or else what the field or parameter `settings` is annotated with, in
    the class itself or the nearest one that it is derived from.

    Args:
        kind: a class, or a function that makes a model.
    Raises:
        SettingsError: the annotation cannot be read.
    """
    if not isinstance(kind, type):
        return _dataclass(getattr(kind, "__annotations__", {}).get("settings"), kind)
    for base in kind.__mro__:
        own = vars(base)
        if "settings_class" in own:
            return own["settings_class"]
        annotations = dict(own.get("__annotations__", {}))
        if "__dataclass_fields__" not in own:                   # a dataclass's own says what the fields say
            annotations = {**getattr(own.get("__init__"), "__annotations__", {}), **annotations}
        if "settings" in annotations:
            return _dataclass(annotations["settings"], base)
    return None


def presets(kind: Any) -> dict[str, dict[str, Any]]:
    """Named settings: the class attribute `presets`, or else `PRESETS` of the class's module.

    A class derived from another has that one's, if its settings are derived from the other's. Of a module's for several
    models, those are left out that set what this one does not have.
    """
    settings, bases = settings_class(kind), getattr(kind, "__mro__", [kind])
    names = {field.name for field in dataclasses.fields(settings)} if settings is not None else set()
    found = [(base, vars(base).get("presets")) for base in bases]
    found += [(base, getattr(sys.modules.get(base.__module__), "PRESETS", None)) for base in bases]
    for base, named in found:
        if named is not None and settings is not None and issubclass(settings, settings_class(base) or ()):
            return {name: values for name, values in named.items() if values.keys() <= names}
    return {}


def default_values(kind: Any, name: str) -> Any:
    """The settings of a model at their defaults.

    Raises:
        SettingsError: it has none, or a setting has no default.
    """
    settings = settings_class(kind)
    if settings is None:
        raise SettingsError(f"{name} has no settings: annotate its parameter or field `settings` with a dataclass that "
                            "has source_vocab_size, target_vocab_size and what else the model is made from.")
    missing = [field.name for field in dataclasses.fields(settings) if field.init
               and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING]
    if missing:
        raise SettingsError(f"{name}: {settings.__name__}.{missing[0]} has no default: give each setting one (0 for "
                            "what comes from the data).")
    return settings()


def make(kind: Any, name: str, settings: Any, **handed: Any) -> NMTModel:
    """The model that a class or function makes from settings.

    Args:
        kind: the class or function.
        name: what messages call it.
        settings: of the model.
        handed: what else it is given, `optimizer_settings` and `clip_norm` of a run: as arguments, as far as it takes
            them. A model that leaves the optimizer to `NMTModel` gets all of them as attributes, too.
    Raises:
        SettingsError: it takes more than that, or makes no `NMTModel`.
    """
    from towernmt.models.interface import NMTModel

    given = {"settings": settings, **handed}
    parameters = inspect.signature(kind).parameters
    needed = [p.name for p in parameters.values() if p.default is p.empty
              and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in given]
    if needed:
        raise SettingsError(f"{name} needs '{needed[0]}', which a run's settings do not have: let it take `settings` "
                            "alone, annotated with a dataclass that has what it is made from.")
    model = kind(**{key: value for key, value in given.items() if key in parameters})
    if not isinstance(model, NMTModel):
        raise SettingsError(f"{name} makes a {type(model).__name__}, which is no towernmt.models.NMTModel: derive it "
                            "from that, so that it can be validated and searched.")
    if type(model).optimizer is NMTModel.optimizer:
        for key, value in handed.items():
            setattr(model, key, value)
    return model


def _dataclass(annotation: Any, owner: Any) -> Any:
    """The dataclass that an annotation of `owner` means, or None if it is none."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, vars(sys.modules[owner.__module__]))
        except (NameError, AttributeError, SyntaxError, TypeError, KeyError) as error:
            raise SettingsError(f"{owner.__qualname__}: the annotation of its settings, '{annotation}', cannot be read "
                                f"({error}): import or define that in its module.") from error
    return annotation if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None
