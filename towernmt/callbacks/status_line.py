"""One line at the foot of a terminal that overwrites itself, among log lines that scroll."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from typing import TextIO

from tensorpack.utils import logger

_ERASE = "\x1b[2K\r"


class StatusLine:
    """Shows a text in the terminal's last line; ordinary log lines replace it, and it comes back below them.

    Attributes:
        active: whether there is a terminal; if not, nothing is ever written.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 0.2) -> None:
        """
        Args:
            stream: where the log goes on the terminal; by default standard output.
            every_seconds: the shortest time between two updates.
        """
        self._stream = stream if stream is not None else sys.stdout
        self._every_seconds, self._shown_at = every_seconds, -every_seconds
        self._visible = False
        self._log = logger._logger
        self.active = bool(getattr(self._stream, "isatty", lambda: False)())

    def open(self) -> None:
        """Begin: log lines to the terminal erase the status line first."""
        if self.active:
            for handler in _terminal_handlers(self._log):
                handler.addFilter(self._erase)

    def close(self) -> None:
        """End, and leave the cursor on an empty line."""
        self._erase(None)
        for handler in _terminal_handlers(self._log):
            handler.removeFilter(self._erase)

    def show(self, text: str, always: bool = False) -> None:
        """Replace the line, cut to the terminal's width, if the last time was long enough ago."""
        now = time.monotonic()
        if not self.active or (now - self._shown_at < self._every_seconds and not always):
            return
        width = shutil.get_terminal_size().columns
        self._stream.write(_ERASE + text[:max(1, width - 1)])
        self._stream.flush()
        self._visible, self._shown_at = True, now

    def log_to_files(self, log: logging.Logger, text: str) -> None:
        """Write a log line to the log's files only."""
        record = log.makeRecord(log.name, logging.INFO, "progress.py", 0, text, (), None)
        for handler in log.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)

    def _erase(self, _: logging.LogRecord | None) -> bool:
        if self._visible:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._visible = False
        return True


def _terminal_handlers(log: logging.Logger) -> list[logging.Handler]:
    return [h for h in log.handlers
            if isinstance(h, logging.StreamHandler) and not isinstance(h, logging.FileHandler)]
