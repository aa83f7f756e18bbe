"""Reports of progress for work on lines, or on other units: their number, speed, remaining time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

Item = TypeVar("Item")


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
        unit: plural name of the units that are counted instead of lines.
    """

    def __init__(self, label: str, total: int | None = None, stream: TextIO | None = None, done: int = 0,
                 unit: str = "lines") -> None:
        self._label, self._total, self._stream, self._unit = label, total, stream, unit
        self.has_reported = self._line_is_open = False
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
        self._stream.write(f"{self._label}: {self._lines:,}{of} {self._unit}, {seconds:.1f} s, {rate:,.0f} "
                           f"{self._unit}/s{left}{clear}{end}")
        self._stream.flush()
        self.has_reported, self._line_is_open = True, end == "\r"

    def break_line(self) -> None:
        """End the line of a terminal that shows the last report, so that other text can follow."""
        if self._stream is not None and self._line_is_open:
            self._stream.write("\n")
            self._line_is_open = False


class StageProgress:
    """Reports of progress for the stages of a work. A stage that ends before its first report is not reported.

    Args:
        stream: stream to write to, or None.
        work: name of the work, which is part of the names of its stages; "" for none.
    """

    def __init__(self, stream: TextIO | None = None, work: str = "") -> None:
        self._stream, self._work = stream, work
        self._progress = LineProgress("")
        self._done = 0

    def begin(self, stage: str, unit: str, total: int | None = None) -> None:
        """Begin a stage, and end the previous one.

        Args:
            stage: name of the work, for example "splitting into sentences".
            unit: plural name of the units that `add` counts.
            total: total number of units, or None if unknown.
        """
        self.end()
        label = f"{self._work}: {stage}" if self._work else stage
        self._progress, self._done = LineProgress(label, total, self._stream, unit=unit), 0

    def of_part(self, work: str) -> StageProgress:
        """Return the progress of a part of the work, and end the present stage."""
        self.end()
        return StageProgress(self._stream, work)

    def add(self, count: int = 1) -> None:
        """Report that `count` more units of the stage are done; 0 shows only the time."""
        self._done += count
        self._progress.update(self._done)

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, each of which is one unit of the stage."""
        for item in items:
            yield item
            self.add()

    def break_line(self) -> None:
        """End the line of a terminal that shows the last report, so that other text can follow."""
        self._progress.break_line()

    def end(self) -> None:
        """End the stage."""
        if self._progress.has_reported:
            self._progress.done()
        self._progress = LineProgress("")


def _duration_text(seconds: float) -> str:
    """Return an approximate duration: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
