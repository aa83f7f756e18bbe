"""`towernmt COMMAND`: the commands, and how errors reach the user."""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from towernmt import __version__
from towernmt.cli.commands import COMMANDS
from towernmt.cli.parser import Parser, refuse_unknown_command
from towernmt.core.errors import TowerNMTError
from towernmt.core.secrets import mask_text, mask_uri
from towernmt.core.terminal.broken_pipe import until_the_reader_has_gone
from towernmt.core.terminal.standard_streams import open_missing_streams
from towernmt.core.terminal.stderr_noise import without_noise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 only if it did what was asked."""
    open_missing_streams()
    return until_the_reader_has_gone(lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(arguments: list[str]) -> int:
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    if asked is not None:
        refuse_unknown_command(asked, COMMANDS)
    parser, commands = make_parser([asked] if asked else [])
    parser.refuse_unknown(list(itertools.takewhile(lambda argument: argument != asked, arguments)))
    if asked is not None:
        commands[asked].refuse_unknown(arguments[arguments.index(asked) + 1:])
    options = parser.parse_args(arguments)
    return run_command(lambda: int(importlib.import_module(COMMANDS[options.command].module).run(options)))


def make_parser(complete: Iterable[str]) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the command line, and that of each command.

    Args:
        complete: the commands that get their options; for the others, which stay unimported, names are enough.
    """
    parser = Parser(prog="towernmt", description="Neural machine translation with tower functions.")
    parser.add_argument("--version", action="version", version=f"towernmt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = {name: commands.add_parser(name, help=command.help, description=command.help, example=command.example)
            for name, command in COMMANDS.items()}
    for name in complete:
        importlib.import_module(COMMANDS[name].module).add_arguments(made[name])
    return parser, made


def run_command(command: Callable[[], int]) -> int:
    """Call `command`; print what the user can mend as one line, without a stack."""
    try:
        with without_noise():
            return until_the_reader_has_gone(command)
    except (TowerNMTError, OSError) as error:
        if isinstance(error, OSError) and not error.filename and error.errno not in _DISK_FULL:
            raise
        print(f"towernmt: {_sentence(error)}", file=sys.stderr)
        if os.environ.get("TOWERNMT_DEBUG"):
            raise
        return error.exit_status if isinstance(error, TowerNMTError) else 1
    except KeyboardInterrupt:
        print("towernmt: interrupted", file=sys.stderr)
        return 130


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _sentence(error: TowerNMTError | OSError) -> str:
    if isinstance(error, TowerNMTError):
        return mask_text(str(error))    # a URI may stand where only a path can be
    place = f"{mask_uri(str(error.filename))}: " if error.filename else ""
    return f"{place}{error.strerror}; mend that, and start the same command again."


if __name__ == "__main__":
    sys.exit(main())
