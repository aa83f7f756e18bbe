"""The log file of a run, which contains all messages of all its resumes."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path

from tensorpack.utils import logger

from towernmt.core.errors import SettingsError
from towernmt.core.terminal_log import (
    DETAIL,
    PlainFormatter,
    command_line,
    configure_terminal_log,
    install_record_filter,
)
from towernmt.core.world import current_world

LOG_FILE = "log.log"
_MAX_HELD_RECORDS = 1000
_LOGGERS = (logger._logger, logging.getLogger("towernmt"))
"""tensorpack's, which callbacks and trainers log to, and that of `towernmt.dataflow`, which knows no tensorpack."""


class _HeldRecords(logging.handlers.MemoryHandler):
    """Buffer of the records that are logged before the directory of the log is known."""

    def __init__(self) -> None:
        super().__init__(_MAX_HELD_RECORDS, flushLevel=logging.CRITICAL + 1)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.buffer) < self.capacity:
            self.buffer.append(record)


class _LogFile(logging.FileHandler):
    """Log file that drops records without a stack trace if the disk is full; the terminal shows them, too."""

    def handleError(self, record: logging.LogRecord) -> None:
        return

    def close(self) -> None:
        """Close the file; records that a full disk cannot store are lost."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def hold_log() -> Iterator[None]:
    """Buffer new records for the file that `begin_log` opens in this block, in the process that writes the run.

    If no file is opened, because the run is refused, the records are dropped at the end of the block. Nested
    blocks share one buffer.
    """
    if current_world().is_chief and not _held_records():
        _add(_HeldRecords())
    try:
        yield
    finally:
        _remove(*_held_records())


def begin_log(directory: str | Path) -> None:
    """Append the log to `log.log` in this directory, and set the directory in tensorpack.

    It replaces tensorpack's `logger.set_logger_dir`, which asks the user what to do with an existing log.

    Raises:
        SettingsError: the file cannot be written.
    """
    install_record_filter()
    configure_terminal_log()
    end_log()
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = _LogFile(directory / LOG_FILE, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SettingsError(f"{directory / LOG_FILE}: cannot write the log ({error.strerror}); pass another --logdir."
                            ) from error
    file.setFormatter(PlainFormatter())
    for held in _held_records():
        held.setTarget(file)
        held.flush()
        _remove(held)
    logger.LOG_DIR, logger._FILE_HANDLER = str(directory), file
    _add(file)
    logger.info(f"Argv: {command_line()}", extra=DETAIL)


def end_log() -> None:
    """Close the log file if one is open."""
    if logger._FILE_HANDLER is not None:
        _remove(logger._FILE_HANDLER)
        logger._FILE_HANDLER.close()
        logger._FILE_HANDLER = None


def _add(handler: logging.Handler) -> None:
    for log in _LOGGERS:
        log.addHandler(handler)
    if logging.lastResort is not None and not logging.getLogger().handlers:
        _LOGGERS[1].addHandler(logging.lastResort)      # Python's default handler for warnings


def _remove(*handlers: logging.Handler) -> None:
    for log in _LOGGERS:
        for handler in handlers:
            log.removeHandler(handler)


def _held_records() -> list[_HeldRecords]:
    return [handler for handler in logger._logger.handlers if isinstance(handler, _HeldRecords)]
