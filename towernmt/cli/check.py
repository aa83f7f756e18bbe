"""`towernmt check`: whether a model obeys the rules of tower functions, and if not, which variable breaks which."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any

from towernmt.errors import SettingsError
from towernmt.models.model_class import default_values, settings_class


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
    from towernmt.models import ARCHITECTURES, architecture, locate

    if name in ARCHITECTURES:
        return _smallest(architecture(name).model, name)
    if ":" not in name:
        raise SettingsError(f"check {name}: name a file or module and what is in it, as {locate.SHAPES[0]}, or an "
                            f"architecture ({', '.join(ARCHITECTURES)}).")
    return _model_of(locate.load(locate.find_place(name)), name)


def _model_of(thing: Any, name: str) -> Any:
    """`thing` if it is a model, or the one that it makes."""
    from tensorpack.train.model_desc import ModelDescBase

    if isinstance(thing, ModelDescBase):
        return thing
    if callable(thing):
        needed = [p.name for p in inspect.signature(thing).parameters.values()
                  if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if needed == ["settings"] and settings_class(thing) is not None:
            return _smallest(thing, name)
        if not needed:
            model = thing()
            if isinstance(model, ModelDescBase):
                return model
    raise SettingsError(f"check {name}: it is no model and makes none without arguments; name a class or function of "
                        "the module that takes no arguments, or `settings` annotated with a dataclass, and gives a "
                        "tensorpack ModelDesc.")


def _smallest(kind: Any, name: str) -> Any:
    """A model of default settings, with vocabularies of a few words where the settings have their sizes."""
    settings = default_values(kind, name)
    names = {field.name for field in dataclasses.fields(settings)} & {"source_vocab_size", "target_vocab_size"}
    return kind(dataclasses.replace(settings, **{name: 16 for name in names}))
