"""The options of a search on the command line: an option for each field of `SearchSettings`."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Collection
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.predict.decoding.settings import SAMPLING_ALONE, SearchSettings

AS_THE_RUN = "default: the run's setting"
SPELLINGS = {"beam_size": "--beam"}
"""Options that are not spelled like their fields."""
_OF_THEIR_OWN = ("averaged", "max_length_factor", "max_length_constant")


def add_search_options(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """One option a field; what is not given is as the run has it.

    Args:
        without: fields that a command has no option for, or one of its own.
    """
    group = parser.add_argument_group("search")
    types = typing.get_type_hints(SearchSettings)
    for field in dataclasses.fields(SearchSettings):
        if field.name not in (*_OF_THEIR_OWN, *without):
            _add_option(group, field, types[field.name])
    group.add_argument("--max-length", metavar="FACTOR,CONSTANT",
                       help=f"a translation has at most source tokens * FACTOR + CONSTANT tokens ({AS_THE_RUN})")
    group.add_argument("--sample", dest="selection", action="store_const", const="sampling",
                       help="draw translations: the same as --selection sampling")
    group.add_argument("--last-weights", action="store_true",
                       help="translate with the weights of the last update, not with their moving average")


def search_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `SearchSettings` that were given.

    Raises:
        SettingsError: --max-length that is not two numbers.
    """
    given = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(SearchSettings)}
    given["averaged"] = False if options.last_weights else None
    if options.max_length is not None:
        factor, _, constant = options.max_length.partition(",")
        try:
            given["max_length_factor"], given["max_length_constant"] = float(factor), int(constant or 0)
        except ValueError:
            raise SettingsError(
                f"--max-length {options.max_length}: expected FACTOR,CONSTANT, for example 2,10.") from None
    return {name: value for name, value in given.items() if value is not None}


def check_alone(given: dict[str, Any]) -> None:
    """Refuse what no run's settings can make right, before anything is loaded.

    Args:
        given: fields of `SearchSettings`; the run's settings have the others.
    Raises:
        SettingsError: a value that cannot work, or two that contradict each other.
    """
    rest: dict[str, Any] = {
        "beam_size": max(5, given.get("n_best", 1)) * max(given.get("beam_groups", 1), 1),
        "max_length_factor": max(2.0, given.get("min_length_factor", 0.0))}
    if SAMPLING_ALONE.keys() & given.keys():
        rest["selection"] = "sampling"
    SearchSettings(**{**rest, **given})


def _add_option(group: Any, field: dataclasses.Field[Any], kind: Any) -> None:
    name = SPELLINGS.get(field.name, "--" + field.name.replace("_", "-"))
    text = f"{_of_a_sentence(field.metadata['help'])} ({AS_THE_RUN})".replace("%", "%%")
    if kind is bool:
        group.add_argument(name, dest=field.name, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif field.metadata["choices"]:
        group.add_argument(name, dest=field.name, choices=field.metadata["choices"], help=text)
    else:
        group.add_argument(name, dest=field.name, type=kind, help=text,
                           metavar={int: "N", float: "NUMBER"}.get(kind, field.name.upper()))


def _of_a_sentence(text: str) -> str:
    """The text without its full stop, in lower case as argparse's own."""
    text = text.removesuffix(".")
    return text if text[:2].isupper() and text[1:2] != " " else text[0].lower() + text[1:]
