"""Mending records of tensorpack's logger: one that cannot be formatted, and one that would show passwords."""

from __future__ import annotations

import logging
import re

from tensorpack.utils import logger


class _MendFailureRecord(logging.Filter):
    """tensorpack logs "Training failed at global_step=" with the step, but without a place for it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.args and isinstance(record.msg, str) and "%" not in record.msg:
            record.msg, record.args = record.msg + " ".join(map(str, record.args)), ()
        return True


class _HideCredentials(logging.Filter):
    """tensorpack logs the command line, in which `--data` may be a URI with a password."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith("Argv: "):
            record.msg = re.sub(r"(?<=://)\S*@", "", record.msg)
            record.msg = re.sub(r"(?i)((?:password|passwd|secret\w*|token)=)[^&\s]*", r"\1...", record.msg)
        return True


def mend_logger() -> None:
    """Install the mends (once) in tensorpack's logger."""
    for mend in (_MendFailureRecord, _HideCredentials):
        if not any(isinstance(f, mend) for f in logger._logger.filters):
            logger._logger.addFilter(mend())


def keep_logging_without_disk() -> None:
    """Let records that the log file has no room for go without a stack each; the terminal has them too."""
    for handler in logger._logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handleError = lambda record: None  # type: ignore[method-assign]
