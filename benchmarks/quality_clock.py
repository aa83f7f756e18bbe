"""The clock of a peer's training: when to keep a checkpoint and when to end.

`quality_fairseq.py` and `quality_onmttf.py` run it inside the peer's own program, so it imports only the standard
library.

Only the time between updates counts. Start-up, tracing, the first update of a process and saving checkpoints do not
count. So the clock favours the peers: the minutes of towernmt include the first update, validation and saving.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from json_lines import append_record, read_records

MARKS = "marks.jsonl"


class Clock:
    """Counter of training minutes, across resumes, that keeps checkpoints at marks.

    SIGTERM and SIGINT end the training after the current update with a checkpoint to resume from.

    Args:
        folder: directory of the run; `marks.jsonl` in it holds one line per mark.
        minutes: training time.
        every: minutes between marks.
        seconds: monotonic clock.
    """

    def __init__(self, folder: Path, minutes: float, every: float,
                 seconds: Callable[[], float] = time.monotonic) -> None:
        self._file, self._minutes, self._every, self._seconds = folder / MARKS, minutes, every, seconds
        last = (read_marks(folder) or [{"minute": 0.0, "target_tokens": 0}])[-1]
        self._before, self._tokens_before = 60 * float(last["minute"]), int(last["target_tokens"])
        self._since: float | None = None
        self._due = next_mark(float(last["minute"]), every)
        self._interrupted = False

    def end_on_signals(self) -> None:
        """End the training on SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._interrupt)

    def _interrupt(self, *_: Any) -> None:
        self._interrupted = True

    def minute(self) -> float:
        """Return the minutes of training so far, across resumes."""
        return (self._before + (0.0 if self._since is None else self._seconds() - self._since)) / 60

    def tick(self, updates: int, target_tokens: int, save: Callable[[], str]) -> bool:
        """Count an update, and save a checkpoint if a mark is reached or training ends.

        Args:
            updates: number of updates so far, across resumes.
            target_tokens: target tokens seen by this process.
            save: saves a checkpoint and returns its path.

        Returns:
            Whether training ends now.
        """
        if self._since is None:
            self._since = self._seconds()
            return self._interrupted
        minute = self.minute()
        ends = minute >= self._minutes or self._interrupted
        if minute >= self._due or ends:
            append_record(self._file, {"mark": self._mark(minute), "minute": minute, "updates": updates,
                                       "target_tokens": self._tokens_before + target_tokens, "checkpoint": save()})
            self._due = next_mark(minute, self._every)
            self._before, self._since = 60 * minute, self._seconds()
        return ends

    def _mark(self, minute: float) -> float | None:
        """Return the mark that was reached, in minutes, or None after an interruption between marks."""
        if minute >= self._minutes:
            return self._minutes
        return round(next_mark(minute, self._every) - self._every, 6) if minute >= self._due else None


def next_mark(minute: float, every: float) -> float:
    """Return the smallest multiple of `every` above `minute`."""
    return (int(minute / every + 1e-9) + 1) * every


def read_marks(folder: Path) -> list[dict[str, Any]]:
    """Return the saved checkpoints in order of time; `mark` is None for one that an interruption saved.

    Raises:
        ValueError: a line other than an unfinished last one is not a record.
    """
    return read_records(folder / MARKS)
