"""What all lines, or the lines of a file, ask of their translations, on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path

from towernmt.dataflow.text.chunks import read_lines
from towernmt.predict.lexical.terminology import Terminology
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
    group.add_argument("--constraints", metavar="FILE",
                       help="phrases that must come: for each line one of this file, with tabs between phrases")
    group.add_argument("--terminology", metavar="FILE",
                       help="where a line holds a source term, its translation must hold the target term: source term, "
                            "tab, target term a line (and, if wanted, tab and `any` for any upper and lower case)")


def options_of_all_lines(args: argparse.Namespace) -> LineOptions:
    """What all lines ask for.

    Raises:
        DataError: a file cannot be read.
    """
    prefix = "" if args.prefix is None or _file(args.prefix) else args.prefix
    avoid = [phrase for phrase in read_text(args.avoid) if phrase.strip()] if args.avoid else []
    terminology = Terminology.read(args.terminology) if args.terminology else None
    return LineOptions(prefix=prefix, partial_word=args.partial_word, avoid=avoid, terminology=terminology)


def options_of_each_line(args: argparse.Namespace, first: int = 1) -> Iterator[LineOptions] | None:
    """What each line asks for; None: nothing but what all ask for.

    Args:
        first: the number of the first line.
    Raises:
        DataError: a file cannot be read.
    """
    by_prefix = args.prefix is not None and _file(args.prefix)
    if not by_prefix and not args.constraints:
        return None
    prefixes: Iterator[str] = repeat("")
    phrases: Iterator[list[str]] = repeat([])
    if by_prefix:
        prefixes = islice(clean_lines(open_input(args.prefix), args.prefix), first - 1, None)
    if args.constraints:
        phrases = islice(map(_phrases, read_lines(args.constraints)), first - 1, None)
    return (LineOptions(prefix=prefix, constraints=constraints)
            for prefix, constraints in zip(prefixes, phrases, strict=False))


def files_of_lines(args: argparse.Namespace) -> dict[str, str | None]:
    """The files that are read, by their options."""
    return {name: file for name, file in (
        ("--prefix", args.prefix), ("--avoid", args.avoid), ("--constraints", args.constraints),
        ("--terminology", args.terminology)) if file is not None and _file(file)}


def _phrases(line: str) -> list[str]:
    return [phrase.strip() for phrase in line.split("\t") if phrase.strip()]


def _file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:     # a text that no file can be called by
        return False
