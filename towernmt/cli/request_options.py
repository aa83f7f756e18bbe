"""Options that request something of translations: of all lines, or of each line by files with as many lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path

from towernmt.cli.translation_options import add_protect_option
from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import clean_lines, read_lines
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import Terminology
from towernmt.predict.lines.text_io import open_input, read_text


def add_line_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `LineOptions`."""
    group = parser.add_argument_group("requests for translations")
    group.add_argument("--source-prefix", metavar="TEXT", default="",
                       help="text before each line that is not translated, such as the tag of the target language of a "
                            "multilingual model: '<2de>'")
    group.add_argument("--prefix", metavar="TEXT|FILE",
                       help="begin all translations with this text, or each with a line of this file")
    group.add_argument("--partial-word", action="store_true",
                       help="the last word of --prefix may be the beginning of a longer one")
    group.add_argument("--avoid", metavar="FILE",
                       help="words and phrases that translations must not contain, one per line")
    group.add_argument("--constraints", metavar="FILE",
                       help="phrases that translations must contain: a line for each input line, with tabs between "
                            "phrases")
    group.add_argument("--terminology", metavar="FILE",
                       help="terms that translations must contain if the line contains the source term: `source "
                            "term<TAB>target term` per line, optionally with `<TAB>any` to ignore case")
    add_protect_option(group)


def options_of_all_lines(args: argparse.Namespace) -> LineOptions:
    """Return the requests for all lines.

    Raises:
        DataError: a file cannot be read.
    """
    prefix = "" if args.prefix is None or _names_file(args.prefix) else args.prefix
    avoid = [phrase for phrase in read_text(args.avoid) if phrase.strip()] if args.avoid else []
    terminology = Terminology.read(args.terminology) if args.terminology else None
    return LineOptions(source_prefix=args.source_prefix, prefix=prefix, partial_word=args.partial_word, avoid=avoid,
                       terminology=terminology, protect=args.protect)


def options_of_each_line(args: argparse.Namespace, first: int = 1) -> Iterator[LineOptions] | None:
    """Return the requests of each line, or None if lines have no separate requests.

    Args:
        args: parsed options.
        first: number of the first line.

    Raises:
        DataError: a file cannot be read.
    """
    files = files_of_each_line(args)
    prefixes, phrases = files.get("--prefix"), files.get("--constraints")
    return options_by_lines(
        islice(clean_lines(open_input(prefixes), prefixes), first - 1, None) if prefixes else None,
        islice(read_lines(phrases), first - 1, None) if phrases else None)


def options_by_lines(prefixes: Iterable[str] | None, phrases: Iterable[str] | None) -> Iterator[LineOptions] | None:
    """Return the requests of each line from the lines of the files; None without files.

    Args:
        prefixes: lines of `--prefix`; None without this file.
        phrases: lines of `--constraints`; None without this file.

    Raises:
        DataError: the iterator raises it if one of two files has fewer lines.
    """
    if prefixes is None:
        return None if phrases is None else (LineOptions(constraints=_phrases(line)) for line in phrases)
    if phrases is None:
        return (LineOptions(prefix=prefix) for prefix in prefixes)
    return map(_line_options, zip_longest(prefixes, phrases))


def _line_options(lines: tuple[str | None, str | None]) -> LineOptions:
    """Return the request of a line from the lines of `--prefix` and `--constraints`; None after the end of a file."""
    prefix, phrases = lines
    if prefix is None or phrases is None:
        shorter, longer = ("--prefix", "--constraints") if prefix is None else ("--constraints", "--prefix")
        raise DataError(f"The file of {shorter} has fewer lines than that of {longer}: both must have a line for each "
                        "input line.")
    return LineOptions(prefix=prefix, constraints=_phrases(phrases))


def files_of_each_line(args: argparse.Namespace) -> dict[str, str]:
    """Return the files with a line for each input line, by their options."""
    return {name: file for name, file in (("--prefix", args.prefix), ("--constraints", args.constraints))
            if file is not None and (name != "--prefix" or _names_file(file))}


def options_of_test_set(args: argparse.Namespace, lines: int) -> list[LineOptions] | None:
    """Return the requests of each line of a test set, or None if lines have no separate requests.

    Each file is read only once, because it may be a pipe, and several systems may translate the test set.

    Args:
        args: the parsed options.
        lines: number of lines in the test set.

    Raises:
        DataError: a file cannot be read, or has another number of lines.
    """
    files = files_of_each_line(args)
    contents = {name: read_text(file) if name == "--prefix" else list(read_lines(file)) for name, file in files.items()}
    for name, content in contents.items():
        if len(content) != lines:
            raise DataError(f"{files[name]} has {len(content)} lines, and the test set has {lines}: write one line per "
                            f"sentence, empty without a {'prefix' if name == '--prefix' else 'phrase'}.")
    options = options_by_lines(contents.get("--prefix"), contents.get("--constraints"))
    return None if options is None else list(options)


def files_of_lines(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the regular files of the options about lines, by option."""
    return {name: file for name, file in (
        ("--prefix", args.prefix), ("--avoid", args.avoid), ("--constraints", args.constraints),
        ("--terminology", args.terminology)) if file is not None and _names_file(file) and Path(file).is_file()}


def _phrases(line: str) -> list[str]:
    return [phrase.strip() for phrase in line.split("\t") if phrase.strip()]


def _names_file(text: str) -> bool:
    """Return whether a text is the path of a file or of a pipe, such as `/dev/fd/63` of `<(...)` in a shell."""
    try:
        return Path(text).exists() and not Path(text).is_dir()
    except OSError:     # the text is not a valid file name
        return False
