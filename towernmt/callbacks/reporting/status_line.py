"""A line at the bottom of the terminal that changes while the lines of the log scroll above it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from towernmt.core.terminal.lost_reader import lead_nowhere
from towernmt.core.terminal.terminal_log import terminal_handlers


class StatusLine:
    """Keeps one line at the bottom of the terminal; other output goes above it.

    Attributes:
        active: whether the terminal can move its cursor; if not, nothing is written.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 0.4, width: int | None = None) -> None:
        """
        Args:
            stream: where the log goes on the terminal; by default standard output.
            every_seconds: the shortest time between two updates.
            width: columns; by default the terminal's present width.
        """
        self._stream, self._every_seconds, self._shown_at = stream, every_seconds, 0.0
        self._width = width
        self._live: Live | None = None
        self._moved: list[tuple[Any, Any]] = []

    @property
    def active(self) -> bool:
        return _can_move_its_cursor(self._out)

    @property
    def _out(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stdout

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        return self._console.width if self._live else 80

    def open(self) -> None:
        """Begin: from now on the log goes above the line."""
        if not self.active or self._live:
            return
        stdout = self._out is sys.stdout
        self._console = _Console(file=self._out, width=self._width, force_terminal=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=stdout,
                          redirect_stderr=stdout and _can_move_its_cursor(sys.stderr))
        handlers = [handler for handler in terminal_handlers() if handler.stream is self._out]
        self._live.start()
        self._moved = [(handler, handler.setStream(sys.stdout)) for handler in handlers if stdout]

    def close(self) -> None:
        """End, and leave the cursor on an empty line."""
        if self._live is None:
            return
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()
        self._live.stop()
        self._live = None

    def due(self) -> bool:
        """Whether the line is shown, and it is time to replace it."""
        return self._live is not None and time.monotonic() - self._shown_at >= self._every_seconds

    def show(self, line: RenderableType) -> None:
        """Replace the line."""
        if self._live is None:
            return
        try:
            self._live.update(line, refresh=True)
            self._shown_at = time.monotonic()
        except OSError:     # the terminal is gone, but training goes on
            lead_nowhere(self._out)


class _Console(Console):
    """A console that leaves the cursor visible: a killed process could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


def _can_move_its_cursor(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM", "") not in ("dumb", "unknown")
