"""The clock of a peer's training: when a checkpoint is kept, and when training ends. `quality_fairseq.py` and
`quality_onmttf.py` hold it inside the peer's own program, so nothing but Python's library is imported.

What counts is the time between updates. Starting, tracing, the first update of a process and the saving of checkpoints
do not. So a peer's minutes are never longer than those of towernmt, whose clock runs from before the first update
through validation and saving.
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
    """Counts the minutes of a training, those before a resume included, and keeps checkpoints at marks.

    SIGTERM and SIGINT end the training behind the update that runs, with a checkpoint to go on from.
    """

    def __init__(self, folder: Path, minutes: float, every: float,
                 seconds: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            folder: of the run; the marks are lines of its `marks.jsonl`.
            minutes: after so many training ends.
            every: minutes from mark to mark.
            seconds: what tells the time.
        """
        self._file, self._minutes, self._every, self._seconds = folder / MARKS, minutes, every, seconds
        last = (read_marks(folder) or [{"minute": 0.0, "target_tokens": 0}])[-1]
        self._before, self._tokens_before = 60 * float(last["minute"]), int(last["target_tokens"])
        self._since: float | None = None
        self._due = next_mark(float(last["minute"]), every)
        self._interrupted = False

    def end_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end the training."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._interrupt)

    def _interrupt(self, *_: Any) -> None:
        self._interrupted = True

    def tick(self, updates: int, target_tokens: int, save: Callable[[], str]) -> bool:
        """Tell the clock that an update was made.

        Args:
            updates: so far, those before a resume included.
            target_tokens: seen by this process.
            save: keeps a checkpoint, and returns its path.
        Returns:
            whether training ends here.
        """
        if self._since is None:
            self._since = self._seconds()
            return self._interrupted
        minute = (self._before + self._seconds() - self._since) / 60
        ends = minute >= self._minutes or self._interrupted
        if minute >= self._due or ends:
            append_record(self._file, {"mark": self._mark(minute), "minute": minute, "updates": updates,
                                       "target_tokens": self._tokens_before + target_tokens, "checkpoint": save()})
            self._due = next_mark(minute, self._every)
            self._before, self._since = 60 * minute, self._seconds()
        return ends

    def _mark(self, minute: float) -> float | None:
        """The mark that is reached, in minutes; None: there is none, but training is interrupted."""
        if minute >= self._minutes:
            return self._minutes
        return round(next_mark(minute, self._every) - self._every, 6) if minute >= self._due else None


def next_mark(minute: float, every: float) -> float:
    """The first multiple of `every` above `minute`."""
    return (int(minute / every + 1e-9) + 1) * every


def read_marks(folder: Path) -> list[dict[str, Any]]:
    """The checkpoints that were kept, by rising minutes; `mark` is None where a stop, and no mark, made one.

    A last line that a killed process left unfinished does not count.

    Raises:
        ValueError: another line is none.
    """
    return read_records(folder / MARKS)
