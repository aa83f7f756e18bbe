"""The trials of a search for settings, each a training in a separate process, and the table of their results."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.callbacks.validation_metrics import Metric
from towernmt.core.files import write_text
from towernmt.core.text_table import align_columns
from towernmt.jobs.training_process import TrainingProcess, ended_by_signal

WAITING, RUNNING, FINISHED, STOPPED, FAILED, INTERRUPTED = (
    "waiting", "running", "finished", "stopped early", "failed", "interrupted")


@dataclass
class TrialRow:
    """A trial in the table of results.

    Attributes:
        number: number of the trial, from 1.
        values: values of the searched settings, by dotted key.
        state: one of the constants of this module.
        step: step of its last validation.
        score: its best score; None before the first validation.
        reason: reason of a failure, in one sentence.
    """

    number: int
    values: dict[str, Any]
    state: str = WAITING
    step: int = 0
    score: float | None = None
    reason: str = ""


@dataclass
class TrialTable:
    """Results of all trials of a search.

    Attributes:
        metric: the metric of the scores.
        rows: trials in the order of their numbers.
    """

    metric: Metric
    rows: list[TrialRow] = field(default_factory=list)

    def add_score(self, row: TrialRow, step: int, score: float) -> None:
        """Add the score of a validation to a row. Only the step counts if the score is not finite."""
        row.step = max(row.step, step)
        if not math.isfinite(score):
            return
        if row.score is None or self.metric.at_least_as_good(score, row.score):
            row.score = score

    def restore_states(self, tsv: str) -> None:
        """Restore the states and the reasons of failures of an earlier search.

        Args:
            tsv: its table, see `as_tsv`.
        """
        rows = {str(row.number): row for row in self.rows}
        for line in tsv.split("\n")[1:]:
            cells = line.split("\t")
            if len(cells) > 4 and cells[0] in rows and cells[3] in (FINISHED, STOPPED, FAILED, INTERRUPTED):
                rows[cells[0]].state, rows[cells[0]].reason = cells[3], cells[-1]

    def ranked(self) -> list[TrialRow]:
        """Return the rows, the best first, failed trials and those without a score last."""
        sign = -1 if self.metric.mode == "max" else 1
        return sorted(self.rows, key=lambda row: (row.state == FAILED, row.score is None,
                                                  sign * (row.score or 0), row.number))

    def best(self) -> TrialRow | None:
        """Return the trial with the best score that did not fail, or None."""
        first = next(iter(self.ranked()), None)
        return None if first is None or first.state == FAILED or first.score is None else first

    def cells(self) -> list[list[str]]:
        """Return the header and a row for each trial, the best first."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row.values))
        head = ["trial", self.metric.label, "updates", "state", *keys]
        return [head, *([str(row.number), "" if row.score is None else self.metric.text(row.score), str(row.step),
                         row.state, *(_format_value(row.values.get(key)) for key in keys)] for row in self.ranked())]

    def as_tsv(self) -> str:
        """Return the table as TSV; its last column has the reasons of failures."""
        head, *lines = self.cells()
        reasons = [" ".join(row.reason.split()) for row in self.ranked()]
        return "".join("\t".join(line) + "\n" for line in
                       ([*head, "reason"], *([*line, reason] for line, reason in zip(lines, reasons, strict=True))))

    def as_text(self) -> str:
        """Return the table for a terminal, and a line for each failed trial."""
        return "".join(f"{line}\n" for line in [*align_columns(self.cells()), *(
            f"Trial {row.number} failed: {row.reason}" for row in self.rows if row.state == FAILED)])


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


SETTINGS, OUTPUT, _OUTCOME = "trial.yaml", "output.txt", "finished.json"
_POLL_SECONDS = 0.2     # seconds between two polls of the process
_MAX_RESTARTS = 3       # restarts of a killed process, before Ray Tune starts the trial elsewhere
_STOP_SECONDS = 120     # seconds for a training to save and to end


class TrialReport(NamedTuple):
    """The progress of a trial.

    Attributes:
        step: step of its last validation.
        score: score of that validation; None if it was reported already, and before the first one.
        ended: whether the training has ended.
        reason: reason of its failure; "" if it did not fail.
    """

    step: int
    score: float | None
    ended: bool = False
    reason: str = ""


class TrialKilled(Exception):
    """The process of a trial was killed several times; another process can resume from its last checkpoint."""


class TrialRun:
    """The training of a trial. Its process starts after the results of earlier processes were reported.

    Args:
        directory: directory of the trial, in which `run` is the run directory.
        arguments: arguments of `towernmt`.
        scalar: name of the score in the statistics of the run.
        working_directory: directory of the command, to which paths in arguments and settings are relative. If this
            machine lacks it, the training starts in the directory of this process.
        processors: number of processors that the training may use; 0 for all.
    """

    def __init__(self, directory: Path, arguments: Sequence[str], scalar: str, working_directory: Path,
                 processors: int = 0) -> None:
        self._directory, self._arguments, self._scalar = directory, list(arguments), scalar
        self._processors = processors
        self._working_directory = working_directory if working_directory.is_dir() else None
        self._searched: tuple[int, int] | None = None       # time and size of the statistics without a new validation
        self._last = TrialReport(0, None)
        self._process: TrainingProcess | None = None
        self._restarts = 0

    def next(self, seconds: float = math.inf) -> TrialReport:
        """Wait for the next validation, for the end of the training, or for this number of seconds.

        Raises:
            TrialKilled: its process was killed several times.
        """
        deadline = time.monotonic() + seconds
        while True:
            status = None if self._process is None else self._process.status
            report = self._next_validation()
            if report is not None:
                self._last = report
                return report
            if self._process is None:
                if (self._directory / _OUTCOME).exists():
                    return self._last._replace(ended=True)
                self._start()
            elif status is not None and ended_by_signal(status) and self._restarts < _MAX_RESTARTS:
                self._restarts += 1
                self._start()
            elif status is not None:
                return self._end(status)
            if time.monotonic() > deadline:
                return self._last._replace(score=None)
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Make the training save a checkpoint and end."""
        if self._process is not None:
            self._process.stop(_STOP_SECONDS)
            self._process = None

    def _start(self) -> None:
        run = trial_run_directory(self._directory)
        run.mkdir(parents=True, exist_ok=True)
        with (self._directory / OUTPUT).open("ab") as output:
            self._process = TrainingProcess(self._arguments, output, subprocess.STDOUT, waits_for=run,
                                            processors=self._processors, directory=self._working_directory)

    def _next_validation(self) -> TrialReport | None:
        """Return the first validation after the last one that was reported, or None."""
        try:
            status = _statistics(self._directory).stat()
        except FileNotFoundError:
            return None
        if (status.st_mtime_ns, status.st_size) == self._searched:
            return None
        for step, score in validations(self._directory, self._scalar):
            if step > self._last.step:
                return TrialReport(step, score)
        self._searched = status.st_mtime_ns, status.st_size
        return None

    def _end(self, status: int) -> TrialReport:
        if status == 0:
            write_text(self._directory / _OUTCOME, json.dumps(self._last._asdict()) + "\n")
            return self._last._replace(ended=True)
        if ended_by_signal(status):
            raise TrialKilled(f"signal {-status if status < 0 else status - 128}")
        reason = last_line(self._directory / OUTPUT) or f"it ended with status {status}"
        return self._last._replace(ended=True, reason=reason)


def validations(trial: Path, scalar: str) -> Iterator[tuple[int, float]]:
    """Yield the step and the score of each validation of a trial so far; a score that is not finite is NaN.

    Damaged lines, such as one that a full disk has cut, are left out.

    Args:
        trial: directory of the trial.
        scalar: name of the score in the statistics of its run.
    """
    file = _statistics(trial)
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    for line in text[:text.rfind("\n") + 1].splitlines():
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        if scalar in figures:
            score = figures[scalar]
            yield figures["global_step"], math.nan if score is None else float(score)


def _statistics(trial: Path) -> Path:
    return trial_run_directory(trial) / "log" / "stats.jsonl"


def last_line(file: Path) -> str:
    """Return the last line of a file that is not blank, or ""."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def trial_run_directory(trial: Path) -> Path:
    """Return the run directory of a trial."""
    return trial / "run"
