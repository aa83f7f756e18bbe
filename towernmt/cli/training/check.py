"""`towernmt check`: whether a model obeys the rules of tower functions, and if not, which variable breaks which."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from towernmt.cli.training.train import with_user_settings
from towernmt.core.errors import SettingsError
from towernmt.core.settings import parse_assignments
from towernmt.models.registry.model_class import settings_class


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt check`."""
    parser.add_argument("model", metavar="MODEL", help=(
        "my_model.py:MyModel (a model, a class or function that makes one without arguments, or a class with a "
        "settings dataclass), or the name of an architecture, such as transformer"))
    parser.add_argument("--preset", help="named sizes of the model, for example tiny; small ones are checked faster")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings of the model, for example model.encoder_layers=1; any number, may be repeated")


def run(args: argparse.Namespace) -> int:
    """Check and print; 0 if every rule is kept, else 1."""
    from towernmt.check import check_tower, rules_for

    model = load_model(args.model, args.preset, args.assignments)
    breaches = check_tower(model)
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"{args.model} keeps the {len(rules_for(model))} rules of tower functions.")
        return 0
    rules = sorted({breach.rule for breach in breaches})
    number = f"{len(breaches)} breaches" if len(breaches) > 1 else "1 breach"
    print(f"{args.model}: {number} of the rules {', '.join(rules)}; "
          "docs/extend/tower-rules.md gives the reasons for them.")
    return 1


def load_model(name: str, preset: str | None = None, assignments: Sequence[str] = ()) -> Any:
    """The model that a command line names.

    Args:
        preset: of the model's settings.
        assignments: such as "model.encoder_layers=1".
    Raises:
        SettingsError: there is none, or it cannot be made without arguments.
    """
    from towernmt.models import ARCHITECTURES, architecture
    from towernmt.models.registry import locate

    if name in ARCHITECTURES:
        return _with_few_words(architecture(name).model, name, preset, assignments)
    if ":" not in name:
        raise SettingsError(f"check {name}: name a file or module and what is in it, as {locate.SHAPES[0]}, or an "
                            f"architecture ({', '.join(ARCHITECTURES)}).")
    thing = locate.load(locate.find_place(name))
    parameters = inspect.signature(thing).parameters if callable(thing) else {}
    needed = [p.name for p in parameters.values() if p.default is p.empty
              and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if "settings" in parameters and needed in ([], ["settings"]) and settings_class(thing) is not None:
        return _with_few_words(thing, name, preset, assignments)
    if preset is not None or assignments:
        raise SettingsError(f"check {name}: --preset and --set are for a class with a settings dataclass; leave them "
                            "out.")
    return _model_of(thing() if callable(thing) and not needed else thing, name)


def _model_of(thing: Any, name: str) -> Any:
    """`thing`, if it is a model."""
    from tensorpack.train.model_desc import ModelDescBase

    if isinstance(thing, ModelDescBase):
        return thing
    raise SettingsError(f"check {name}: it is no model and makes none without arguments; name a class or function of "
                        "the module that takes no arguments, or `settings` annotated with a dataclass, and gives a "
                        "tensorpack ModelDesc.")


def _with_few_words(kind: Any, name: str, preset: str | None, assignments: Sequence[str]) -> Any:
    """A model from settings, with vocabularies of a few words where the settings have their sizes."""
    from towernmt.run.settings import default_settings

    settings = with_user_settings(default_settings(name, preset), parse_assignments(assignments)).model
    names = {field.name for field in dataclasses.fields(settings)} & {"source_vocab_size", "target_vocab_size"}
    return kind(dataclasses.replace(settings, **{name: 16 for name in names}))
