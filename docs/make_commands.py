"""Write docs/reference/commands.md from the parsers of the commands.

python docs/make_commands.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from towernmt.cli.commands import COMMANDS
from towernmt.cli.main import Parser, make_parser

PAGE = Path(__file__).parent / "reference" / "commands.md"
HEAD = """\
# Commands

All commands of `towernmt` and their options, as in `towernmt COMMAND --help`. The
[guide](../guide/command-line.md) explains what they have in common.

(`python docs/make_commands.py` generates this page from the commands.)
"""


def page() -> str:
    """Return the Markdown text of the page."""
    _, parsers = make_parser(COMMANDS)
    return "\n".join([HEAD, *(_section(name, parsers[name]) for name in COMMANDS)])


def _section(name: str, parser: Parser) -> str:
    command = COMMANDS[name]
    return (f"## {name}\n\n{command.help[0].upper()}{command.help[1:]}.\n\n```sh\n{command.example}\n```\n\n"
            f"| option | meaning |\n|---|---|\n{''.join(_rows(parser))}")


def _rows(parser: Parser) -> Iterator[str]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings or [action.dest])
        value = "" if action.nargs == 0 else f" `{_value(action)}`" if _value(action) else ""
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        needed = " (required)" if action.required and action.option_strings else ""
        yield f"| {names}{value} | {_cell(text)}{needed} |\n"


def _value(action: argparse.Action) -> str:
    if not action.option_strings:
        return ""
    if action.metavar is None and action.choices:
        return "\\|".join(map(str, action.choices))
    metavar = action.metavar or action.dest.upper()
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    return value.replace("|", "\\|") + (" ..." if action.nargs in ("+", "*") else "")


def _cell(text: str) -> str:
    """Return a help text as a cell of a table; text between backticks needs no escapes except that of `|`."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*")
                    for number, part in enumerate(parts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
