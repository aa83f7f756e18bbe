"""`towernmt COMMAND`: parse the command line, run the command, and print errors of the user as one line.

A mistake on the command line is one sentence that names the nearest command or option. Help shows an example.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from towernmt import __version__
from towernmt.cli.commands import COMMANDS, function_of
from towernmt.cli.other_toolkits import COMMANDS_OF_OTHER_TOOLKITS, advice, advice_on_word
from towernmt.cli.output_paths import check_output_paths
from towernmt.core.errors import (
    SettingsError,
    TowerNMTError,
    exhausted_resource,
    gpu_failure,
    mask_text,
    mask_uri,
    nearest,
)
from towernmt.core.standard_streams import (
    escape_unencodable_output,
    open_missing_streams,
    redirect_to_null_device,
    run_handling_closed_pipe,
    without_noise,
)
from towernmt.core.unfinished_work import INTERRUPTED, end_without_waiting

_OPTION = re.compile(r"--?[A-Za-z][^\s=]*")


class _Help(argparse.HelpFormatter):
    """Formatter that keeps the lines of an example, and wraps other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _integer(text: str) -> int:
    """Return a number that indices and sizes of sequences can have.

    Raises:
        ValueError: the text is no integer.
        argparse.ArgumentTypeError: the number is too large.
    """
    number = int(text)
    if abs(number) > sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text} has too many digits")
    return number


class Parser(argparse.ArgumentParser):
    """Parser that accepts complete option names only, because new options would change the meaning of abbreviations."""

    def __init__(self, *arguments: Any, example: str = "", advice: Mapping[str, str] | None = None,
                 **keywords: Any) -> None:
        """Make a parser.

        Args:
            arguments: positional arguments of `argparse.ArgumentParser`.
            example: shell commands for the end of the help text.
            advice: replacement for each unknown option; see `other_toolkits.advice`.
            keywords: keyword arguments of `argparse.ArgumentParser`.
        """
        epilog = "example:\n" + "\n".join(f"  {line}" for line in example.splitlines()) if example else None
        self._advice = advice or {}
        super().__init__(*arguments, **{"formatter_class": _Help, "allow_abbrev": False, "epilog": epilog, **keywords})
        self.register("type", int, _integer)

    def error(self, message: str) -> NoReturn:
        """End the program with a usage error, in one sentence."""
        end = " See" if message.endswith("?") else "; see"
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help`.\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help or a version; unlike argparse, end the program with an error if it cannot be written."""
        if file is not sys.stdout:
            super()._print_message(message, file)
            return
        try:
            file.write(message)
            file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            redirect_to_null_device(file)
            self.exit(1, f"{self.prog}: standard output cannot be written ({error.strerror}).\n")

    @property
    def option_names(self) -> list[str]:
        """The options of the parser, such as `--help`."""
        return list(self._option_string_actions)

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Refuse an unknown option, and name the right one, before other errors in the command line are reported."""
        option_names = self.option_names
        for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
            match = _OPTION.match(argument)
            if match and match[0] not in option_names and not re.search(r"\s", argument.partition("=")[0]):
                self.error(f"there is no option {match[0]}{self._suggested_option(match[0], option_names)}")

    def _suggested_option(self, option: str, option_names: Sequence[str]) -> str:
        bare_name = option.lstrip("-").replace("_", "-")
        if f"--{bare_name}" in option_names:
            return f", did you mean --{bare_name}?"
        text = self._advice.get(bare_name) or self._advice.get(bare_name.lower())
        return f"; {text}" if text else did_you_mean(option, option_names)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `, did you mean ...?` with the known word that is most similar to `word`, or ""."""
    names, bare_word = list(names), word.strip("-")
    completions = [name for name in names if len(bare_word) > 1 and name.strip("-").startswith(bare_word)]
    close = " or ".join(completions) or nearest(word, names)
    return f", did you mean {close}?" if close else ""


def refuse_unknown_command(word: str, commands: Iterable[str], foreign_names: Mapping[str, str]) -> None:
    """End the program with an error if a command does not exist, and name the right one.

    Args:
        word: command on the command line.
        commands: names of the existing commands.
        foreign_names: command by its name in other toolkits.
    """
    if word not in commands:
        equivalent = foreign_names.get(word.lower())
        suggestion = (f", did you mean {equivalent}?" if equivalent else
                      did_you_mean(word, commands) or f"; the commands are {', '.join(commands)}.")
        print(f"towernmt: there is no command {word}{suggestion}", file=sys.stderr)
        raise SystemExit(2)


def refuse_undecodable(arguments: Iterable[str]) -> None:
    """End the program if the locale is not UTF-8 and an argument is not ASCII: TensorFlow's file names are UTF-8."""
    encoding = sys.getfilesystemencoding()
    for argument in arguments:
        if encoding != "utf-8" and not argument.isascii():
            print(f"towernmt: the argument {ascii(argument)} cannot be read safely in the encoding of this locale, "
                  f"{encoding}; use a UTF-8 locale, such as LC_ALL=C.UTF-8.", file=sys.stderr)
            raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status: 0 only for success.

    Args:
        arguments: arguments of the command line; None for those of the process, which ends here if work is unfinished.
    """
    closed_streams = open_missing_streams()
    escape_unencodable_output()
    try:
        status = run_handling_closed_pipe(
            lambda: _main(list(sys.argv[1:] if arguments is None else arguments), closed_streams))
    except SystemExit as ended:     # --help, --version, or a mistake on the command line
        if ended.code in (0, None) and "stdout" in closed_streams:
            sys.exit(1)
        raise
    except KeyboardInterrupt:       # the second one, or one before the command has begun
        status = INTERRUPTED
    status = _flushed(status)
    if arguments is None:
        end_without_waiting(status)
    return status


def _flushed(status: int) -> int:
    """Return the exit status of the program: not 0 if standard output cannot be written, as when the disk is full."""
    try:
        sys.stdout.flush()
    except OSError as error:
        redirect_to_null_device(sys.stdout)     # otherwise Python flushes again at exit
        if status == 0:
            print(f"towernmt: standard output cannot be written ({error.strerror}).", file=sys.stderr)
        return status or 1
    return status


def _main(arguments: list[str], closed_streams: Collection[str]) -> int:
    refuse_undecodable(arguments)
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    if name is not None:
        refuse_unknown_command(name, COMMANDS, COMMANDS_OF_OTHER_TOOLKITS)
    parser, commands = make_parser([name] if name else [])
    parser.refuse_unknown(list(itertools.takewhile(lambda argument: argument != name, arguments)))
    if name is not None:
        commands[name].refuse_unknown(arguments[arguments.index(name) + 1:])
    options, words = parser.parse_known_args(arguments)
    if words:
        commands[options.command].error(advice_on_word(options.command, words[0]))
    command = commands[options.command]
    return run_command(lambda: _run(options, command, closed_streams), _memory_options(command),
                       [name for name in _THREAD_OPTIONS if name in command.option_names])


def _run(options: argparse.Namespace, parser: Parser, closed_streams: Collection[str]) -> int:
    check_output_paths(options.command, parser, options, closed_streams)
    return function_of(options.command, "run_{}")(options)


def make_parser(names: Iterable[str]) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the command line, and the parser of each command by name.

    Args:
        names: commands whose options are added; the modules of the others are not imported.
    """
    parser = Parser(prog="towernmt", description="Neural machine translation with tower functions.")
    parser.add_argument("--version", action="version", version=f"towernmt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command_parsers = {
        name: commands.add_parser(name, help=command.help, description=command.help, example=command.example,
                                  advice=advice(name))
        for name, command in COMMANDS.items()}
    for name in names:
        function_of(name, "add_{}_arguments")(command_parsers[name])
    return parser, command_parsers


SHELLS = ("bash", "zsh", "tcsh")


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt completion`."""
    parser.add_argument("shell", choices=SHELLS, help="shell of the completion script")


def run_completion(args: argparse.Namespace) -> int:
    """Print the completion script and return the exit status.

    Raises:
        SettingsError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise SettingsError("completion needs the package 'shtab': pip install 'towernmt[completion]'.") from None

    parser, commands = make_parser(COMMANDS)
    for command in commands.values():
        for action in command._actions:
            if action.metavar in ("FILE", "PATH", "DATA", "URI", "MODEL"):
                action.complete = shtab.FILE    # type: ignore[attr-defined]
            elif action.metavar in ("DIR", "DIRECTORY", "RUN") or action.dest == "logdir":
                action.complete = shtab.DIRECTORY   # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


def run_command(command: Callable[[], int], memory_options: Sequence[str] = (),
                thread_options: Sequence[str] = ()) -> int:
    """Call `command`, return its exit status, and print an error that the user can fix as one line.

    Args:
        command: does the work, and returns the exit status.
        memory_options: options of the command that need less memory with a smaller value.
        thread_options: options of the command that start fewer threads or processes with a smaller value.
    """
    try:
        with without_noise():
            return run_handling_closed_pipe(command)
    except KeyboardInterrupt:
        print("towernmt: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        sentence = _sentence(error, memory_options, thread_options)
        if sentence is None:
            raise
        print(f"towernmt: {sentence}", file=sys.stderr)
        if os.environ.get("TOWERNMT_DEBUG"):
            raise
        return error.exit_status if isinstance(error, TowerNMTError) else 1


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MEMORY_OPTIONS = ("--beam", "--n-best", "--batch-sentences", "--batch-tokens")
_THREAD_OPTIONS = ("--threads", "--workers")


def _memory_options(parser: Parser) -> list[str]:
    option_names = parser.option_names
    memory_options = [name for name in _MEMORY_OPTIONS if name in option_names]
    return memory_options or ["data.batch_tokens"] * ("--set" in option_names)


def _sentence(error: Exception, memory_options: Sequence[str], thread_options: Sequence[str]) -> str | None:
    """Return the message of an error that the user can fix; None if it is a fault of the program."""
    if isinstance(error, TowerNMTError):
        return mask_text(str(error))    # a path may be a URI with a password
    sentence = exhausted_resource(error, memory_options, thread_options) or gpu_failure(error)
    if sentence is None and isinstance(error, RuntimeError) and (loop := _SYMLINK_LOOP.match(str(error))):
        sentence = f"{loop[1]}: the symbolic links lead back to themselves. Remove the loop, or pass another path."
    if sentence is None and isinstance(error, UnicodeEncodeError):
        sentence = _of_file_names(error)
    if sentence is None and isinstance(error, OSError) and (error.filename or error.errno in _DISK_FULL):
        prefix = f"{mask_uri(str(error.filename))}: " if error.filename else ""
        sentence = f"{prefix}{error.strerror}; fix that, and start the same command again."
    return sentence


def _of_file_names(error: UnicodeEncodeError) -> str:
    """Return the message for a file name that cannot be encoded; text for users is escaped by `main`."""
    name, encoding = ascii(error.object[:80]), sys.getfilesystemencoding()
    if encoding != "utf-8":
        return (f"{name} cannot be written in the encoding of this locale, {encoding}. Start the command with a UTF-8 "
                "locale, such as LC_ALL=C.UTF-8.")
    return f"{name} holds bytes that are not UTF-8. Rename the file or directory."


_SYMLINK_LOOP = re.compile("Symlink loop from '(.*)'")      # of pathlib's `resolve`


if __name__ == "__main__":
    sys.exit(main())
