"""A report of progress for work on lines: number of lines, speed, remaining time."""

from __future__ import annotations

import time
from typing import TextIO


def report_interval(terminal: bool) -> float:
    """Return the seconds between two reports of progress, to a terminal or to a file."""
    return 0.5 if terminal else 10.0


class LineProgress:
    """A report of progress: number of lines, lines per second, and remaining time.

    Args:
        label: name of the work, for example "encoding".
        total: total number of lines, or None if unknown.
        stream: stream to write to, or None.
        done: number of lines that an earlier process has done; they do not count for the rate.
    """

    def __init__(self, label: str, total: int | None = None, stream: TextIO | None = None, done: int = 0) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._terminal = stream is not None and stream.isatty()
        self._interval = report_interval(self._terminal)
        self._start = self._last = time.monotonic()
        self._before = self._lines = done

    def update(self, lines: int) -> None:
        """Report that `lines` lines are done in total."""
        self._lines = lines
        now = time.monotonic()
        if now - self._last >= self._interval:
            self._last = now
            self._write(now, end="\r" if self._terminal else "\n")

    def done(self) -> None:
        """Write the last report, since the work has ended."""
        self._write(time.monotonic(), end="\n")

    def _write(self, now: float, end: str) -> None:
        if self._stream is None:
            return
        seconds = now - self._start
        rate = (self._lines - self._before) / seconds if seconds > 0 else 0.0
        of = f" of {self._total:,}" if self._total is not None else ""
        rest = (self._total or 0) - self._lines
        left = f", {_duration_text(rest / rate)} left" if rest > 0 and rate > 0 else ""
        clear = "\x1b[K" if self._terminal else ""
        self._stream.write(f"{self._label}: {self._lines:,}{of} lines, {seconds:.1f} s, {rate:,.0f} "
                           f"lines/s{left}{clear}{end}")
        self._stream.flush()


def _duration_text(seconds: float) -> str:
    """Return an approximate duration: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
