"""Mending one record of tensorpack's logger that cannot be formatted, and would hide the error behind it."""

from __future__ import annotations

import logging

from tensorpack.utils import logger


class _MendFailureRecord(logging.Filter):
    """tensorpack logs "Training failed at global_step=" with the step, but without a place for it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.args and isinstance(record.msg, str) and "%" not in record.msg:
            record.msg, record.args = record.msg + " ".join(map(str, record.args)), ()
        return True


def mend_logger() -> None:
    """Install the mend (once) in tensorpack's logger."""
    if not any(isinstance(f, _MendFailureRecord) for f in logger._logger.filters):
        logger._logger.addFilter(_MendFailureRecord())


def keep_logging_without_disk() -> None:
    """Let records that the log file has no room for go without a stack each; the terminal has them too."""
    for handler in logger._logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handleError = lambda record: None  # type: ignore[method-assign]
