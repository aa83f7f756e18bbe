"""`towernmt check`: check a model against the rules of tower functions, and name the variable that breaks a rule."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import parse_assignments
from towernmt.models.architectures import settings_class


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt check`."""
    parser.add_argument("model", metavar="MODEL", help=(
        "my_model.py:MyModel (a model, a class or function that makes one without arguments, or a class with a "
        "settings dataclass), or the name of an architecture, such as transformer"))
    parser.add_argument("--preset", help="named sizes of the model, for example tiny; small ones are checked faster")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings of the model, for example model.encoder_layers=1; any number, may be repeated")


def run_check(args: argparse.Namespace) -> int:
    """Check a model and print the result; returns 0 if the model obeys every rule, else 1."""
    from towernmt.check import check_tower, rules_for

    model = load_model(args.model, args.preset, args.assignments)
    breaches = check_tower(model)
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"{args.model} obeys the {len(rules_for(model))} rules of tower functions.")
        only_training = _only_training(model)
        if only_training:
            print(f"Only training uses these weights, and translations do not depend on them: "
                  f"{', '.join(only_training)}.")
        return 0
    rules = sorted({breach.rule for breach in breaches})
    number = f"{len(breaches)} breaches" if len(breaches) > 1 else "1 breach"
    print(f"{args.model}: {number} of the rules {', '.join(rules)}; "
          "docs/extend/tower-rules.md gives the reasons for them.")
    return 1


def _only_training(model: Any) -> list[str]:
    """Return the names of the weights that only training uses."""
    from towernmt.checkpoint.weights import training_tower, weights_of_model
    from towernmt.models.interface import NMTModel

    if not isinstance(model, NMTModel):
        return []
    trained = training_tower(model).weights
    return sorted({*trained} - {*weights_of_model(model, trained)})


def load_model(name: str, preset: str | None = None, assignments: Sequence[str] = ()) -> Any:
    """Return the model that a command line names.

    Args:
        name: an architecture, FILE.py:NAME or MODULE:NAME.
        preset: preset of the model's settings; None for its defaults.
        assignments: items of `--set`, such as `model.encoder_layers=1`.

    Raises:
        SettingsError: the model is missing, or it cannot be made without arguments.
    """
    from towernmt.models import model_location
    from towernmt.models.architectures import ARCHITECTURES, architecture

    if name in ARCHITECTURES:
        return _with_few_words(architecture(name).model, name, preset, assignments)
    if ":" not in name:
        raise SettingsError(f"check {name}: pass a file or module and a name in it, such as "
                            f"{model_location.SHAPES[0]}, or an architecture ({', '.join(ARCHITECTURES)}).")
    thing = model_location.load_attribute(model_location.find_place(name))
    parameters = inspect.signature(thing).parameters if callable(thing) else {}
    needed = [p.name for p in parameters.values() if p.default is p.empty
              and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if "settings" in parameters and needed in ([], ["settings"]) and settings_class(thing) is not None:
        return _with_few_words(thing, name, preset, assignments)
    if preset is not None or assignments:
        raise SettingsError(f"check {name}: --preset and --set need a class with a settings dataclass: leave them out.")
    return _model_of(thing() if callable(thing) and not needed else thing, name)


def _model_of(thing: Any, name: str) -> Any:
    """Return `thing` if it is a model.

    Raises:
        SettingsError: it is not a model.
    """
    from tensorpack.train.model_desc import ModelDescBase

    if isinstance(thing, ModelDescBase):
        return thing
    raise SettingsError(f"check {name}: not a model, and cannot make one without arguments: pass a class or function "
                        "that returns a tensorpack ModelDesc and takes no arguments, or only `settings` with a "
                        "dataclass as annotation.")


def _with_few_words(kind: Any, name: str, preset: str | None, assignments: Sequence[str]) -> Any:
    """Return a model made from settings, with small vocabularies if the settings have their sizes."""
    from towernmt.run.resolve import Overrides, SettingsSources, resolve_settings

    overrides = Overrides("--set", parse_assignments(assignments))
    settings = resolve_settings(SettingsSources(name, preset, overrides=(overrides,))).settings.model
    names = {field.name for field in dataclasses.fields(settings)} & {"source_vocab_size", "target_vocab_size"}
    return kind(dataclasses.replace(settings, **{name: 16 for name in names}))
