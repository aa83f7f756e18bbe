"""Progress reports of a translation in ranges."""

from __future__ import annotations

import time
from typing import TextIO

from towernmt.core.line_progress import report_interval


class RangeProgress:
    """Writes the number of translated lines, the rates of lines and tokens, and the remaining time.

    Args:
        total: number of lines.
        done: number of lines that were translated before.
        stream: destination.
    """

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self._total, self._done_before, self._stream = total, done, stream
        self._terminal = stream.isatty()
        self._interval = report_interval(self._terminal)
        self._start = self._last_report = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last report is over."""
        return time.monotonic() - self._last_report >= self._interval

    def report(self, lines: int, tokens: int, workers: int, last: bool = False) -> None:
        """Write a report.

        Args:
            lines: number of translated lines, including those of other processes.
            tokens: number of tokens of the translations by the workers of this process.
            workers: number of workers of this process.
            last: whether the work has ended.
        """
        self._last_report = time.monotonic()
        seconds = max(self._last_report - self._start, 1e-9)
        rate = (lines - self._done_before) / seconds
        left = "" if last or not rate else f", ETA {_clock((self._total - lines) / rate)}"
        clear, end = ("\x1b[K", "\n" if last else "\r") if self._terminal else ("", "\n")
        self._stream.write(f"translating: {lines:,} of {self._total:,} lines, {_clock(seconds)}, {rate:,.1f} lines/s, "
                           f"{tokens / seconds:,.0f} tokens/s here with {workers} worker{'s'[:workers != 1]}{left}"
                           f"{clear}{end}")
        self._stream.flush()


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
