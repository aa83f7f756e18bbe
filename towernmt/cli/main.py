"""`towernmt COMMAND`: the commands, and how errors reach the user."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from towernmt import __version__
from towernmt.allocator import restart_with_allocator
from towernmt.cli.quiet import quiet_tensorflow
from towernmt.cli.standard_streams import open_missing_streams
from towernmt.errors import TowerNMTError

COMMANDS = {
    "prepare": "make vocabularies and shards of integer ids from text",
    "load": "put sentence pairs into a database table",
    "inspect": "look at sources: pairs, samples, lengths, speed, trouble",
    "train": "train a model, or go on with a run",
    "translate": "translate lines from standard input",
    "evaluate": "translate a test set and score it (BLEU, chrF)",
    "score": "the log-probability that a model gives to translations",
    "check": "check a model against the rules of tower functions",
    "average": "make one checkpoint from the mean weights of several",
    "grow": "give a trained run the vocabulary of other data",
}


def program() -> int:
    """`main`, as a program of its own."""
    restart_with_allocator()
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 only if it did what was asked."""
    open_missing_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="towernmt", description="Neural machine translation with tower functions.")
    parser.add_argument("--version", action="version", version=f"towernmt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((a for a in arguments if a in COMMANDS), None)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == asked:       # the others stay unimported: TensorFlow takes seconds
            importlib.import_module(f"towernmt.cli.{name}").add_arguments(command)
    options = parser.parse_args(arguments)
    return run_command(lambda: int(importlib.import_module(f"towernmt.cli.{options.command}").run(options)))


def run_command(command: Callable[[], int]) -> int:
    """Call `command`; print what the user can mend as one line, without a stack."""
    try:
        with quiet_tensorflow():
            return command()
    except (TowerNMTError, OSError) as error:
        if isinstance(error, OSError) and not error.filename and error.errno not in _DISK_FULL:
            raise
        print(f"towernmt: {_sentence(error)}", file=sys.stderr)
        if os.environ.get("TOWERNMT_DEBUG"):
            raise
        return 1
    except KeyboardInterrupt:
        print("towernmt: interrupted", file=sys.stderr)
        return 130


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _sentence(error: TowerNMTError | OSError) -> str:
    if isinstance(error, TowerNMTError):
        return str(error)
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror}; mend that, and start the same command again."


if __name__ == "__main__":
    sys.exit(program())
