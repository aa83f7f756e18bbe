"""The command line's parser: mistakes are one sentence that names what is nearest, and help shows an example."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_OPTION = re.compile(r"--[A-Za-z][^\s=]*")


class _Help(argparse.HelpFormatter):
    """Keeps the lines of an example; wraps other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """argparse's, which takes options by their whole names only: an abbreviation means something else tomorrow."""

    def __init__(self, *arguments: Any, example: str = "", **others: Any) -> None:
        """
        Args:
            arguments: as argparse's.
            example: lines that a shell takes, shown at the end of the help.
            others: as argparse's.
        """
        epilog = "example:\n" + "\n".join(f"  {line}" for line in example.splitlines()) if example else None
        super().__init__(*arguments, **{"formatter_class": _Help, "allow_abbrev": False, "epilog": epilog, **others})

    def error(self, message: str) -> NoReturn:
        """End the program with a usage error, in one sentence."""
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help` tells more.\n")

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Refuse an option that is not there, with the nearest that is, before anything else about the line."""
        known = list(self._option_string_actions)
        for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
            found = _OPTION.match(argument)
            if found and found[0] not in known and not re.search(r"\s", argument.partition("=")[0]):
                self.error(f"there is no option {found[0]}{nearest(found[0], known)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` with what is most like `word`, or nothing."""
    known, plain = list(known), word.strip("-")
    longer = [name for name in known if len(plain) > 1 and name.strip("-").startswith(plain)]
    close = longer or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f", did you mean {' or '.join(close)}?" if close else ""


def refuse_unknown_command(word: str, commands: Iterable[str]) -> None:
    """End the program if there is no such command, with the nearest that is."""
    if word not in commands:
        near = nearest(word, commands) or f"; the commands are {', '.join(commands)}."
        print(f"towernmt: there is no command {word}{near}", file=sys.stderr)
        raise SystemExit(2)
