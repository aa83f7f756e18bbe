"""What all lines, or the lines of a file, ask of their translations, on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from towernmt.predict.lines.options import LineOptions
from towernmt.predict.text_io import clean_lines, open_input, read_text


def add_line_options(parser: argparse.ArgumentParser) -> None:
    """The options; see `LineOptions`."""
    group = parser.add_argument_group("what translations are like")
    group.add_argument("--prefix", metavar="TEXT|FILE",
                       help="translations begin with this text, or each with a line of this file")
    group.add_argument("--partial-word", action="store_true",
                       help="the last word of --prefix may be the beginning of a longer one")
    group.add_argument("--avoid", metavar="FILE", help="words and phrases that shall not come, one a line")


def options_of_all_lines(args: argparse.Namespace) -> LineOptions:
    """What all lines ask for.

    Raises:
        DataError: a file cannot be read.
    """
    prefix = "" if args.prefix is None or _file(args.prefix) else args.prefix
    avoid = [phrase for phrase in read_text(args.avoid) if phrase.strip()] if args.avoid else []
    return LineOptions(prefix=prefix, partial_word=args.partial_word, avoid=avoid)


def options_of_each_line(args: argparse.Namespace, first: int = 1) -> Iterator[LineOptions] | None:
    """What each line asks for; None: nothing but what all ask for.

    Args:
        first: the number of the first line.
    Raises:
        DataError: a file cannot be read.
    """
    if args.prefix is None or not _file(args.prefix):
        return None
    prefixes = islice(clean_lines(open_input(args.prefix), args.prefix), first - 1, None)
    return (LineOptions(prefix=prefix) for prefix in prefixes)


def files_of_lines(args: argparse.Namespace) -> dict[str, str | None]:
    """The files that are read, by their options."""
    return {name: file for name, file in (("--prefix", args.prefix), ("--avoid", args.avoid))
            if file is not None and _file(file)}


def _file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:     # a text that no file can be called by
        return False
