"""`towernmt completion`: what bash and zsh need to complete commands, options and files."""

from __future__ import annotations

import argparse

from towernmt.core.errors import SettingsError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt completion`."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to print for")


def run(args: argparse.Namespace) -> int:
    """Print the script; returns the exit status.

    Raises:
        SettingsError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise SettingsError("completion needs the package 'shtab': pip install 'towernmt[completion]'.") from None
    from towernmt.cli.commands import COMMANDS
    from towernmt.cli.main import make_parser

    parser, commands = make_parser(COMMANDS)
    for command in commands.values():
        for action in command._actions:
            if action.metavar in ("FILE", "PATH", "DATA", "URI", "MODEL"):
                action.complete = shtab.FILE    # type: ignore[attr-defined]
            elif action.metavar in ("DIR", "DIRECTORY", "RUN") or action.dest == "logdir":
                action.complete = shtab.DIRECTORY   # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0
