"""Refuse to write over an input of a command, or into a directory of another command, and refuse empty paths.

Every command passes through `check_output_paths` before it runs. `Command.outputs` declares the options that name
outputs. All other options that name paths count as inputs, so a new option is covered without a line here.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from towernmt.cli.commands import COMMANDS, Output
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import has_package_manifest
from towernmt.predict.lines.output_file import STDIN, STDOUT, check_apart, descriptor_of

NO_PATHS = frozenset(
    "ADDRESS ALPHA CALLER CODE CODE[:NAME] COUNT DIRECTION=TEXT FACTOR,CONSTANT FIRST,LAST FORMAT FORMAT[:PRECISION] K "
    "LINES M METHOD N N,N NAME NUMBER ORIGIN P PAIR PART REGEX SCRIPT,... SECONDS STEPS SYSTEM TEXT TOKEN,... TOKENS "
    "UTILITY W,W,... WEIGHT WHICH WORDS WORDS|TOKENS X YYYY-MM-DD".split())
"""The metavars of options whose values are no paths."""

_PATHS_ALONE = frozenset("DATA DIR DIRECTORY FILE MODEL PATH RUN URI".split())
"""The metavars of options whose values are always paths."""

_LITERALS = (None, "", "-")
_SQLITE = re.compile(r"sqlite:///(.+?)(?:\?.*)?$")


def path_options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the options of a command whose values may be paths: destination to option."""
    return {action.dest: action.option_strings[0] if action.option_strings else action.dest.upper()
            for action in parser._actions if action.nargs != 0 and action.choices is None
            and action.type in (None, str) and str(action.metavar) not in NO_PATHS}


def check_output_paths(command: str, parser: argparse.ArgumentParser, options: argparse.Namespace,
                       closed_streams: Collection[str] = ()) -> None:
    """Refuse an output that is an input or another output, or that lies in a run, preparation, export or package.

    Results that would be lost are refused, too.

    Args:
        command: name of the command.
        parser: parser of the command.
        options: parsed options.
        closed_streams: the streams among `stdin`, `stdout` and `stderr` that were closed when the program started.

    Raises:
        DataError: names the two options, the directory, or the closed stream.
        SettingsError: names the two options, the directory, or the option with an empty path.
    """
    _refuse_closed_streams(command, options, closed_streams)
    _refuse_empty_inputs(parser, options, COMMANDS[command].outputs)
    declared, names = COMMANDS[command].outputs, path_options(parser)
    inputs = {names[dest]: list(_paths(getattr(options, dest, None))) for dest in names if dest not in declared}
    outputs = {names[dest]: _output(getattr(options, dest, None)) for dest in declared}
    if command == "load" and all(_SQLITE.match(getattr(options, dest, None) or "") for dest in ("source", "output")):
        inputs[names["source"]] = []    # tables of one database; `load_table` refuses a table as its own source
    for dest, declaration in declared.items():
        name = names[dest]
        if getattr(options, dest, None) == "":
            raise SettingsError(f"{name} is empty: pass an output path.")
        if (output := outputs[name]) is not None:
            check_apart((name, output), {**inputs, STDIN: [None]}, owned=declaration.owned)
    _refuse_equal_outputs(outputs)
    work = getattr(options, "work_directory", None)
    for name, output in outputs.items():
        if work and name != names["work_directory"] and output is not None and (
                Path(os.path.realpath(work)) in Path(os.path.realpath(output)).parents):
            raise SettingsError(f"{name} {output} lies in --work-directory {work}: pass another directory for the "
                                "parts.")
    check_apart((STDOUT, None), {**inputs, STDIN: [None]})
    for dest, declaration in declared.items():
        if (output := outputs[names[dest]]) is not None:
            _check_writable(declaration, names[dest], output)


def _refuse_empty_inputs(parser: argparse.ArgumentParser, options: argparse.Namespace, outputs: Collection[str]
                         ) -> None:
    """Refuse an option with an empty path, such as that of a shell variable that is not set.

    A command would ignore the option, and train without `--config` or `--monolingual`, for example.

    Args:
        parser: parser of the command.
        options: parsed options.
        outputs: destinations of the options that name outputs.
    """
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        is_empty = "" in value if isinstance(value, list) else value == ""
        if is_empty and action.metavar in _PATHS_ALONE and action.default != "" and action.dest not in outputs:
            name = action.option_strings[0] if action.option_strings else action.dest.upper()
            alternative = "" if action.required else f", or leave out {name}"
            raise SettingsError(f"{name} is empty: pass a path{alternative}.")


def _check_writable(declaration: Output, name: str, output: str) -> None:
    """Refuse an output that cannot be written, before the command begins its work.

    Raises:
        SettingsError: the output cannot be written; the message has the reason.
    """
    is_directory = declaration.is_directory
    if declaration.may_be_several and ("{name}" in output or output.endswith("/") or os.path.isdir(output)):
        return
    try:
        status: os.stat_result | None = os.stat(output)
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise SettingsError(f"{name} {output} cannot be written ({error.strerror}): pass another path.") from error
    if (status is not None and stat.S_ISDIR(status.st_mode) != is_directory) or (output.endswith("/") > is_directory):
        expected, actual = ("directory", "file") if is_directory else ("file", "directory")
        raise SettingsError(f"{name} {output}: expected a {expected}, but this is a {actual}: pass another path.")
    if status is None:
        _check_folder(name, output, is_directory or declaration.makes_folder)
    elif not is_directory:
        _check_replaceable(declaration, name, output, is_regular=stat.S_ISREG(status.st_mode))


def _check_replaceable(declaration: Output, name: str, output: str, is_regular: bool) -> None:
    """Refuse an existing file whose replacement would be a mistake."""
    if declaration.is_replaced and (not is_regular or descriptor_of(output) is not None):
        raise SettingsError(f"{name} {output} is a pipe, a device or a standard stream, which the file would replace: "
                            "pass a regular file.")
    if is_regular and not declaration.may_be_package and has_package_manifest(output):
        raise SettingsError(f"{name} {output} is a package, which would be replaced: pass another path.")


def _check_folder(name: str, output: str, makes_folder: bool) -> None:
    """Refuse a new output whose folder is missing, unless the command makes it, or is not writable."""
    folder = Path(os.path.realpath(output)).parent
    if not makes_folder and not folder.is_dir():
        raise SettingsError(f"{name} {output}: the directory {folder} is missing: create it, or pass another path.")
    existing_parent = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not (existing_parent.is_dir() and os.access(existing_parent, os.W_OK | os.X_OK)):
        raise SettingsError(f"{name} {output}: {existing_parent} is not a writable directory: pass another path.")


def _refuse_closed_streams(command: str, options: argparse.Namespace, closed_streams: Collection[str]) -> None:
    """Refuse to run if results would be lost or the input is missing, because a shell has closed a stream."""
    declared = COMMANDS[command]
    instead = declared.instead_of_stdout
    if "stdout" in closed_streams and declared.prints and not (instead and getattr(options, instead, None)):
        alternative = f", or pass --{instead} FILE" if instead else ""
        raise DataError(f"standard output is closed, so the results of towernmt {command} would be lost: redirect "
                        f"it to a file{alternative}.")
    for dest in declared.outputs:
        output = getattr(options, dest, None)
        number = descriptor_of(output) if isinstance(output, str) and output not in _LITERALS else None
        if number in (0, 1, 2) and ("stdin", "stdout", "stderr")[number] in closed_streams:
            raise DataError(f"{output} is a standard stream that is closed: redirect it to a file, or pass a file.")
    if "stdout" in closed_streams and command == "train" and options.help_settings is not None:
        raise DataError("standard output is closed, so the settings would be lost: redirect it to a file.")
    if "stderr" in closed_streams and ((command == "align" and options.gold) or (command == "rerank" and options.tune)):
        raise DataError("standard error is closed, so the printed rates or weights would be lost: redirect it to a "
                        "file.")
    if "stdin" in closed_streams and declared.instead_of_stdin and not any(
            getattr(options, name, None) for name in declared.instead_of_stdin):
        raise DataError(f"standard input is closed, so towernmt {command} has nothing to read: pass --input FILE.")


def _refuse_equal_outputs(outputs: Mapping[str, str | None]) -> None:
    """Refuse two outputs with the same path."""
    named_outputs = [(name, path) for name, path in outputs.items() if path is not None]
    for index, (name, path) in enumerate(named_outputs):
        for other_name, other_path in named_outputs[:index]:
            check_apart((name, path), {other_name: [other_path]}, consequence=f"{other_name} would be lost")


def _output(value: Any) -> str | None:
    """Return the local path that an option writes; None if it writes to no local path."""
    if value in _LITERALS:
        return None
    if not isinstance(value, str):
        raise SettingsError(f"expected one output path, but found {value!r}.")
    if match := _SQLITE.match(value):
        return match[1]
    return None if "://" in value else value


def _paths(value: Any) -> Iterator[str]:
    """Yield every path that an option's value may mean: `NAME=a`, `a:0.5`, `a+b`, `a?option=b`, `*.de`, `x.{de,en}`."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths(item)
    if not isinstance(value, str) or value in _LITERALS:
        return
    texts = {value, value.partition("=")[2], value.rpartition(":")[0], value.partition("?")[0], *value.split("+")}
    texts |= {text.partition("=")[2] for text in value.split("+")}
    if match := _SQLITE.match(value):
        texts.add(match[1])
    for text in sorted(texts - {""}):
        for path in _without_braces(text):
            yield path
            if glob.has_magic(path):
                yield from glob.iglob(path)


def _without_braces(text: str) -> list[str]:
    """Return the texts that `x.{a,b}` stands for."""
    match = re.match(r"(.*?)\{([^{}]*,[^{}]*)\}(.*)", text, re.S)
    if match is None:
        return [text]
    return [text, *(expansion for alternative in match[2].split(",")
                    for expansion in _without_braces(match[1] + alternative + match[3]))]
