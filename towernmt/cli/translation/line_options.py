"""What all lines, or the lines of a file, ask of their translations, on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from pathlib import Path

from towernmt.core.errors import DataError
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
    files = files_of_each_line(args)
    prefixes, phrases = files.get("--prefix"), files.get("--constraints")
    return options_by_lines(
        islice(clean_lines(open_input(prefixes), prefixes), first - 1, None) if prefixes else None,
        islice(read_lines(phrases), first - 1, None) if phrases else None)


def options_by_lines(prefixes: Iterable[str] | None, phrases: Iterable[str] | None) -> Iterator[LineOptions] | None:
    """What each line asks for, by lines of the files that say it; None: nothing but what all ask for.

    Args:
        prefixes, phrases: of `--prefix` and `--constraints`; None: there is no such file.
    """
    if prefixes is None and phrases is None:
        return None
    begun: Iterable[str] = repeat("") if prefixes is None else prefixes
    wanted: Iterable[list[str]] = repeat([]) if phrases is None else map(_phrases, phrases)
    return (LineOptions(prefix=prefix, constraints=constraints)
            for prefix, constraints in zip(begun, wanted, strict=False))


def files_of_each_line(args: argparse.Namespace) -> dict[str, str]:
    """The files that have a line for each line, by their options."""
    return {name: file for name, file in (("--prefix", args.prefix), ("--constraints", args.constraints))
            if file is not None and (name != "--prefix" or _file(file))}


def constraints_of_each_line(args: argparse.Namespace, lines: int) -> list[list[str]]:
    """The phrases that `--constraints` wants of each of so many lines.

    Raises:
        DataError: the file cannot be read, or has another number of lines.
    """
    if not args.constraints:
        return [[] for _ in range(lines)]
    phrases = [_phrases(line) for line in read_lines(args.constraints)]
    if len(phrases) != lines:
        raise DataError(f"{args.constraints} has {len(phrases)} lines, and the test set has {lines}: write a line for "
                        "each sentence, an empty one for no phrases.")
    return phrases


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
