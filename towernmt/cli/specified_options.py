"""The options that a user specifies, by comparison with the defaults of the parser."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def specified_options(args: argparse.Namespace, *groups: Callable[[argparse.ArgumentParser], None],
                      names: Collection[str] | None = None, excluded: Collection[str] = ()) -> list[str]:
    """Return the options whose values differ from their defaults.

    Args:
        args: parsed options.
        groups: functions that add the options to compare to a parser.
        names: names of the values that are compared, as argparse stores them; None: all.
        excluded: names of values that are not compared.
    """
    parser = argparse.ArgumentParser(add_help=False)
    for add_group in groups:
        add_group(parser)
    options: dict[str, str] = {}        # the first option that sets a value
    for action in parser._actions:
        is_compared = action.option_strings and action.dest not in excluded and (names is None or action.dest in names)
        if is_compared and getattr(args, action.dest) != action.default:
            options.setdefault(action.dest, action.option_strings[0])
    return list(options.values())
