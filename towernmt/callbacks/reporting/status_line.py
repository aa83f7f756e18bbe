"""What stands in a terminal's last line and changes, among log lines that scroll above it."""

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
    """Keeps one line at the foot of the terminal; what else is written goes above it.

    Attributes:
        active: whether there is a terminal that can do it; if not, nothing is ever written.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 0.4, width: int | None = None) -> None:
        """
        Args:
            stream: where the log goes on the terminal; by default standard output.
            every_seconds: the shortest time between two updates.
            width: columns; by default those that the terminal has at the time.
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
        """Begin: the log's lines to the terminal go above the line from now on."""
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
        """Whether the line is there and has stood for long enough."""
        return self._live is not None and time.monotonic() - self._shown_at >= self._every_seconds

    def show(self, line: RenderableType) -> None:
        """Replace the line."""
        if self._live is None:
            return
        try:
            self._live.update(line, refresh=True)
            self._shown_at = time.monotonic()
        except OSError:     # the terminal has gone; the training has not
            lead_nowhere(self._out)


class _Console(Console):
    """One that leaves the cursor visible: a process that is killed cannot bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


def _can_move_its_cursor(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM", "") not in ("dumb", "unknown")
