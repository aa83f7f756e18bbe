"""How far a long translation has come: over all processes and machines, with what is left."""

from __future__ import annotations

import time
from typing import TextIO


class PartProgress:
    """Writes lines, their rate, that of tokens, and the time that is left.

    Args:
        total: lines there are.
        done: lines that were done before.
        stream: where to write.
        interval: seconds between two reports (a terminal is refreshed twice a second).
    """

    def __init__(self, total: int, done: int, stream: TextIO, interval: float = 10.0) -> None:
        self._total, self._before, self._stream = total, done, stream
        self._terminal = stream.isatty()
        self._interval = 0.5 if self._terminal else interval
        self._start = self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a report."""
        return time.monotonic() - self._last >= self._interval

    def report(self, lines: int, tokens: int, workers: int, last: bool = False) -> None:
        """Write one.

        Args:
            lines: done so far, also before and by others.
            tokens: of the translations that this process and its workers made.
            workers: that translate here.
            last: the work has ended.
        """
        self._last = time.monotonic()
        seconds = max(self._last - self._start, 1e-9)
        rate = (lines - self._before) / seconds
        left = "" if last or not rate else f", ETA {_clock((self._total - lines) / rate)}"
        clear, end = ("\x1b[K", "\n" if last else "\r") if self._terminal else ("", "\n")
        self._stream.write(f"translating: {lines:,} of {self._total:,} lines, {_clock(seconds)}, {rate:,.1f} lines/s, "
                           f"{tokens / seconds:,.0f} tokens/s here with {workers} worker{'s'[:workers != 1]}{left}"
                           f"{clear}{end}")
        self._stream.flush()


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
