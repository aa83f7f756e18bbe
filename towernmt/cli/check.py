"""`towernmt check`: whether a model obeys the rules of tower functions, and if not, which variable breaks which."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from towernmt.errors import SettingsError

_SHAPES = ("my_model.py:MyModel", "my_package.my_model:MyModel")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt check`."""
    parser.add_argument("model", metavar="MODEL", help=(
        "my_model.py:MyModel (a model, a class or function that makes one without arguments, or a class with a "
        "settings dataclass), or the name of an architecture, such as transformer"))


def run(args: argparse.Namespace) -> int:
    """Check and print; 0 if every rule is kept, else 1."""
    from towernmt.models.tower_rules import check_tower, rules_for

    model = load_model(args.model)
    breaches = check_tower(model)
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"{args.model} keeps the {len(rules_for(model))} rules of tower functions.")
        return 0
    rules = sorted({breach.rule for breach in breaches})
    number = f"{len(breaches)} breaches" if len(breaches) > 1 else "1 breach"
    print(f"{args.model}: {number} of the rules {', '.join(rules)}; docs/tower-rules.md tells why they are rules.")
    return 1


def load_model(name: str) -> Any:
    """The model that a command line names.

    Raises:
        SettingsError: there is none, or it cannot be made without arguments.
    """
    from towernmt.models import ARCHITECTURES, architecture

    if name in ARCHITECTURES:
        return _smallest(architecture(name).model, architecture(name).settings)
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise SettingsError(f"check {name}: name a file or module and what is in it, as {_SHAPES[0]}, or an "
                            f"architecture ({', '.join(ARCHITECTURES)}).")
    module = _load(place)
    if not hasattr(module, attribute):
        raise SettingsError(f"check {name}: {place} has no '{attribute}'; name the class of the model, or a function "
                            "that makes one.")
    return _model_of(getattr(module, attribute), name)


def _load(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise SettingsError(f"check {place}: there is no such module ({error}); name a file, as {_SHAPES[0]}."
                                ) from error
    path = Path(place)
    if not path.is_file():
        raise SettingsError(f"{place}: there is no such file; name the one that holds the model, as {_SHAPES[0]}.")
    sys.path.insert(0, str(path.resolve().parent))       # what lies beside it, as python does
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{place} is not a Python file; name the one that holds the model, as {_SHAPES[0]}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _model_of(thing: Any, name: str) -> Any:
    """`thing` if it is a model, or the one that it makes."""
    from tensorpack.train.model_desc import ModelDescBase

    if isinstance(thing, ModelDescBase):
        return thing
    if callable(thing):
        needed = [p.name for p in inspect.signature(thing).parameters.values()
                  if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        settings = _settings_class(thing)
        if needed == ["settings"] and settings is not None:
            return _smallest(thing, settings)
        if not needed:
            model = thing()
            if isinstance(model, ModelDescBase):
                return model
    raise SettingsError(f"check {name}: it is no model and makes none without arguments; name a class or function of "
                        "the module that takes no arguments and gives a tensorpack ModelDesc.")


def _settings_class(thing: Any) -> Any:
    """The dataclass that the parameter `settings` is annotated with, or None."""
    try:
        annotation = inspect.signature(thing, eval_str=True).parameters["settings"].annotation
    except (KeyError, NameError):
        return None
    return annotation if dataclasses.is_dataclass(annotation) else None


def _smallest(model: Any, settings: Any) -> Any:
    """A model of default settings, with vocabularies of a few words where the settings have their sizes."""
    names = {field.name for field in dataclasses.fields(settings)}
    return model(settings(**{name: 16 for name in ("source_vocab_size", "target_vocab_size") if name in names}))
