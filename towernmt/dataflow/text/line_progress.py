"""Progress of long work over lines: one line rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO


class LineProgress:
    """Writes how many lines are done, how many a second, and how long the rest will take.

    Args:
        label: what is being done, e.g. "encoding".
        total: number of lines, if it is known.
        stream: where to write; None: nowhere.
        interval: seconds between two reports (a terminal is refreshed twice a second).
        done: lines that were done before, by an earlier process; they do not count for the rate.
    """

    def __init__(self, label: str, total: int | None = None, stream: TextIO | None = None,
                 interval: float = 10.0, done: int = 0) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._terminal = stream is not None and stream.isatty()
        self._interval = 0.5 if self._terminal else interval
        self._start = self._last = time.monotonic()
        self._before = self._lines = done

    def update(self, lines: int) -> None:
        """`lines` are done so far."""
        self._lines = lines
        now = time.monotonic()
        if now - self._last >= self._interval:
            self._last = now
            self._write(now, end="\r" if self._terminal else "\n")

    def done(self) -> None:
        """The work has ended: one last line."""
        self._write(time.monotonic(), end="\n")

    def _write(self, now: float, end: str) -> None:
        if self._stream is None:
            return
        seconds = now - self._start
        rate = (self._lines - self._before) / seconds if seconds > 0 else 0.0
        of = f" of {self._total:,}" if self._total is not None else ""
        rest = (self._total or 0) - self._lines
        left = f", {_in_words(rest / rate)} left" if rest > 0 and rate > 0 else ""
        clear = "\x1b[K" if self._terminal else ""
        self._stream.write(f"{self._label}: {self._lines:,}{of} lines, {seconds:.1f} s, {rate:,.0f} "
                           f"lines/s{left}{clear}{end}")
        self._stream.flush()


def _in_words(seconds: float) -> str:
    """Roughly: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
