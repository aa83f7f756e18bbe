"""`towernmt prepare`: text files, or any sources of sentence pairs, to prepared data."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import typing
from pathlib import Path
from typing import Any

from towernmt.chosen.preset import proposed_preset
from towernmt.core.machine.visible_gpus import visible_gpus
from towernmt.core.secrets import mask_uri
from towernmt.dataflow.prepare.preparation import prepare
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings

DESCRIPTION = ("Make vocabularies, shards of integer ids and statistics from two text files, one sentence a "
               "line, or from any sources of sentence pairs, in flat memory.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option for each field of `PrepareSettings`, with its help and its default."""
    parser.description = DESCRIPTION
    kinds = typing.get_type_hints(PrepareSettings)
    for field in _options():
        option = "--" + field.name.replace("_", "-")
        text = field.metadata["help"].replace("%", "%%")
        kind = _kind(kinds[field.name])
        if kind is bool:
            action = "store_true" if field.default is False else argparse.BooleanOptionalAction
            parser.add_argument(option, action=action, help=text)
            continue
        if kind is list:
            default: list[str] | None = None if field.default is None else []
            metavar = "NAME" if field.name == "valid_name" else "FILE"
            parser.add_argument(option, nargs="+", action="extend", default=default, metavar=metavar, help=text)
            continue
        if field.name == "ray":
            parser.add_argument(option, nargs="?", const="", metavar="ADDRESS", help=text)
            continue
        required = field.name in ("source", "output")
        if not required and field.default not in (None, ""):
            text += f" Default: {field.default}."
        choices = field.metadata["choices"] or None
        parser.add_argument(option, type=kind, default=field.default, required=required, choices=choices,
                            metavar=None if choices else _metavar(field.name, kind), help=text)


def run(args: argparse.Namespace) -> int:
    """Prepare, and print the table of statistics.

    Raises:
        TowerNMTError: what `prepare` raises.
    """
    settings = PrepareSettings(**{field.name: getattr(args, field.name) for field in _options()})
    if settings.output.startswith("s3://"):
        from towernmt.dataflow.prepare.prepare_to_s3 import prepare_to_s3

        data = prepare_to_s3(settings, stream=sys.stderr)
    else:
        data = prepare(settings, stream=sys.stderr)
    print(data.statistics_table, end="")
    run_name = Path(str(data.directory).rstrip("/")).name or "run"
    gpus = len(visible_gpus())
    preset = proposed_preset(data.pairs, gpus)
    smaller = "" if gpus else "; towernmt train takes a smaller one for a short training"
    print(f"Proposed: --preset {preset.value}, as {preset.reason}{smaller}.\n"
          f"Prepared. Train on it: towernmt train --data {shlex.quote(mask_uri(settings.output))} "
          f"{'--gpu 0 ' if gpus else ''}--logdir {shlex.quote(f'runs/{run_name}')}", file=sys.stderr)
    return 0


def _options() -> list[dataclasses.Field[Any]]:
    """The settings that have an option."""
    return [field for field in dataclasses.fields(PrepareSettings) if "help" in field.metadata]


def _kind(annotation: Any) -> type:
    """The type of an option's value: `float` for `float | None`, `list` for a list of files."""
    if list in (typing.get_origin(annotation), *map(typing.get_origin, typing.get_args(annotation))):
        return list
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    kind: type = kinds[0] if kinds else annotation
    return kind


def _metavar(name: str, kind: type) -> str:
    return "DIR" if name == "output" else {int: "N", float: "X", str: "FILE"}[kind]
