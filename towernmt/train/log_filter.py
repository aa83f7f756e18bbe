"""Mending records of tensorpack's logger: what cannot be formatted, what would show passwords, what frightens."""

from __future__ import annotations

import logging
import shlex
import sys

from tensorpack.utils import logger

from towernmt.core.secrets import mask_uri

_STOPPED = "Training was stopped by exception "


class _Mend(logging.Filter):
    """Four records of tensorpack's.

    "Training failed at global_step=" comes with the step, but without a place for it. "Argv: " is the command line, in
    which `--data` may be a URI with a password. "Training was stopped by exception" is the usual end of a run. Which
    callbacks are left to the chief is no news in a process that is not it.
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
    """The program's own, for a shell, without secrets: each argument for itself, since a password may have blanks."""
    return shlex.join(mask_uri(argument) for argument in sys.argv)


def mend_logger() -> None:
    """Install the mends (once) in tensorpack's logger."""
    if not any(isinstance(f, _Mend) for f in logger._logger.filters):
        logger._logger.addFilter(_Mend())
