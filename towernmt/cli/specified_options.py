"""Options of a command line that differ from their defaults, for messages about options without an effect."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def options_with_defaults(actions: Iterable[argparse.Action], excluded: Sequence[str] = ()
                          ) -> dict[str, tuple[str, Any]]:
    """Return the options of actions with their defaults, by the names of their values.

    Args:
        actions: actions of a parser, also of positional arguments, which are left out.
        excluded: names of values to leave out.
    """
    options: dict[str, tuple[str, Any]] = {}
    for action in actions:
        if action.option_strings and action.dest not in excluded:
            options.setdefault(action.dest, (action.option_strings[0], action.default))
    return options


def specified_options(args: argparse.Namespace, options: Mapping[str, tuple[str, Any]]) -> str:
    """Return the options whose values differ from the defaults, for a message.

    Args:
        args: the parsed command line.
        options: result of `options_with_defaults`.
    """
    return ", ".join(option for name, (option, default) in options.items() if getattr(args, name) != default)
