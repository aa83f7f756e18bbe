"""Select the log lines that standard output shows: results and warnings, but not each step of the setup.

A run's log file has all lines; see `towernmt.run.run_log`.

A second filter, for the log file too, corrects records of tensorpack's logger: records that cannot be formatted, that
would show passwords, or that report the usual end of a run like a failure.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import textwrap
from functools import partial
from typing import Any

import towernmt.core.tf_compat  # noqa: F401    # before tensorpack, which imports TensorFlow with all its noise

# isort: split

from tensorpack.utils import logger

from towernmt.core.errors import mask_uri
from towernmt.core.standard_streams import is_stderr_requested, redirect_to_null_device

DETAIL = {"detail": True}
"""`logger.info(text, extra=DETAIL)`: for the log file, and for terminals only with `--verbose`."""
_TENSORPACK = os.path.dirname(os.path.dirname(os.path.abspath(logger.__file__)))
_SETUP = tuple(os.path.join(_TENSORPACK, *path.split("/")) for path in (
    "train/", "tfutils/", "input_source/", "graph_builder/", "predict/", "utils/", "callbacks/summary.py",
    "callbacks/graph.py"))
"""Files of tensorpack that log the steps of the setup; its other callbacks log results."""
_MARKS = {logging.WARNING: "warning: ", logging.ERROR: "error: ", logging.CRITICAL: "error: "}
_INDENT = " " * 9


def configure_terminal_log(verbose: bool | None = None) -> None:
    """Make tensorpack's handlers leave out details, write colours to terminals only, and wrap lines between words.

    Args:
        verbose: whether to show the details; None leaves this unchanged (at first, they are left out).
    """
    for handler in terminal_handlers():
        details = next((f for f in handler.filters if isinstance(f, _DetailFilter)), None)
        if details is None:
            details = _DetailFilter()
            handler.addFilter(details)
            handler.setFormatter(_TerminalFormatter(handler))
            handler.handleError = partial(_handle_write_error, handler)
        if verbose is not None:
            details.verbose = verbose


def terminal_handlers() -> list[Any]:
    """Return tensorpack's handlers that write to standard output or standard error, not to a file."""
    return [handler for handler in logger._logger.handlers if type(handler) is logging.StreamHandler]


def move_to_stderr() -> None:
    """Move the handlers that write to stdout to stderr; see `log_to_stderr`."""
    configure_terminal_log()
    for handler in terminal_handlers():
        if handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def _handle_write_error(handler: Any, record: logging.LogRecord) -> None:
    """Discard further output after a write error of a closed pipe or terminal (`| head`); the file still gets it."""
    if isinstance(sys.exc_info()[1], OSError):
        redirect_to_null_device(handler.stream)
    else:
        logging.Handler.handleError(handler, record)


class _DetailFilter(logging.Filter):
    """Leaves out tensorpack's messages about the setup, its harmless warnings, and records marked as a detail."""

    verbose = False

    def filter(self, record: logging.LogRecord) -> bool:
        if self.verbose or record.levelno >= logging.ERROR:
            return True
        is_own = not record.pathname.startswith(_SETUP) or getattr(record, "on_terminal", False)
        harmless = "may refer to both" in str(record.msg)
        return (is_own or record.levelno > logging.INFO) and not getattr(record, "detail", False) and not harmless


class PlainFormatter(logging.Formatter):
    """Formats a record as tensorpack does, without colours: `[1122 15:28:43 @trainer.py:135] text`."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s @%(filename)s:%(lineno)d] %(mark)s%(message)s", "%m%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.mark = {logging.WARNING: "WRN ", logging.ERROR: "ERR ", logging.CRITICAL: "ERR ",
                       logging.DEBUG: "DBG "}.get(record.levelno, "")
        return super().format(record)


class _TerminalFormatter(PlainFormatter):
    """Formats a record for a terminal as `15:28:43 text`, wrapped between words; for a file as `PlainFormatter`."""

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler

    def format(self, record: logging.LogRecord) -> str:
        if not getattr(self._handler.stream, "isatty", lambda: False)():
            return super().format(record)
        width = max(20, shutil.get_terminal_size().columns - len(_INDENT) - 1)
        short_form = getattr(record, "short", None)
        text = short_form(width) if short_form is not None else _MARKS.get(record.levelno, "") + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        lines = [piece for line in text.split("\n") for piece in _wrapped(line, width)]
        return self.formatTime(record, "%H:%M:%S") + " " + f"\n{_INDENT}".join(lines)


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + (2 if line.startswith(" ") else 0))
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


if is_stderr_requested():
    move_to_stderr()


_STOPPED = "Training was stopped by exception "


class _RecordFilter(logging.Filter):
    """Corrects four records of tensorpack.

    "Training failed at global_step=" has an argument without a placeholder. "Argv: " is the command line, in which
    `--data` may be a URI with a password. "Training was stopped by exception" reports the usual end of a run. The
    callbacks that only the chief calls are of no interest in the other processes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.msg, str):
            return True
        if record.msg.startswith("Callback ") and record.msg.endswith(" is chief-only, skipped."):
            return False
        if record.args and "%" not in record.msg:
            record.msg, record.args = record.msg + " ".join(map(str, record.args)), ()
        if record.msg.startswith("Argv: "):
            record.msg = f"Argv: {command_line()}"
        if record.msg.startswith(_STOPPED):
            record.msg, record.on_terminal = f"Training ends: {record.msg[len(_STOPPED):]}", True
        return True


def command_line() -> str:
    """Return the command line of this program for a shell, with secrets masked in each argument."""
    return shlex.join(mask_uri(argument) for argument in sys.argv)


def install_record_filter() -> None:
    """Install the filter that corrects records in tensorpack's logger, once."""
    if not any(isinstance(f, _RecordFilter) for f in logger._logger.filters):
        logger._logger.addFilter(_RecordFilter())
