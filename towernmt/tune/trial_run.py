"""A trial: a training in a process of its own, followed by what it writes into its directory."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.core.files.atomic_files import write_text
from towernmt.elastic.training_process import start_training

SETTINGS, OUTPUT, _OUTCOME = "trial.yaml", "output.txt", "finished.json"
_PAUSE = 0.2            # seconds between two looks
_RESTARTS = 3           # of a process that was killed, before the whole trial is started elsewhere
_TO_SAVE = 120          # seconds that a training may take to save and end


class Report(NamedTuple):
    """What a trial has to say.

    Attributes:
        step: of its last validation.
        score: of that; None before the first.
        ended: whether the training is at its end.
        why: it failed; "" if it did not.
    """

    step: int
    score: float | None
    ended: bool = False
    why: str = ""


class TrialKilled(Exception):
    """The process of a trial was killed from outside; another may go on from its last checkpoint."""


class TrialRun:
    """A training that is started when all that it has reported earlier has been taken.

    Args:
        directory: of the trial; that of its run is `run` in it.
        arguments: what `towernmt` gets.
        scalar: the name of the score in the run's statistics.
    """

    def __init__(self, directory: Path, arguments: Sequence[str], scalar: str) -> None:
        self._directory, self._arguments, self._scalar = directory, list(arguments), scalar
        self._statistics = run_of(directory) / "log" / "stats.jsonl"
        self._last = Report(0, None)
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0

    def next(self) -> Report:
        """Wait for the next validation, or for the end.

        Raises:
            TrialKilled: its process was killed.
        """
        while True:
            status = None if self._process is None else self._process.poll()
            report = self._next_validation()
            if report is not None:
                self._last = report
                return report
            if self._process is None:
                if (self._directory / _OUTCOME).exists():
                    return self._last._replace(ended=True)
                self._start()
            elif status is not None and _killed(status) and self._restarts < _RESTARTS:
                self._restarts += 1
                self._start()
            elif status is not None:
                return self._end(status)
            time.sleep(_PAUSE)

    def stop(self) -> None:
        """Have the training save a checkpoint and end."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_TO_SAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        run = run_of(self._directory)
        run.mkdir(parents=True, exist_ok=True)
        with (self._directory / OUTPUT).open("ab") as output:
            self._process = start_training(self._arguments, output, subprocess.STDOUT, waits_for=run)

    def _next_validation(self) -> Report | None:
        """The first validation after the last one that was reported."""
        try:
            text = self._statistics.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        for line in text[:text.rfind("\n") + 1].splitlines():
            figures = json.loads(line)
            if self._scalar in figures and figures["global_step"] > self._last.step:
                return Report(figures["global_step"], float(figures[self._scalar]))
        return None

    def _end(self, status: int) -> Report:
        if status == 0:
            write_text(self._directory / _OUTCOME, json.dumps(self._last._asdict()) + "\n")
            return self._last._replace(ended=True)
        if _killed(status):
            raise TrialKilled(f"signal {-status if status < 0 else status - 128}")
        return self._last._replace(ended=True, why=self._last_words() or f"it ended with status {status}")

    def _last_words(self) -> str:
        lines = (self._directory / OUTPUT).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _killed(status: int) -> bool:
    return status < 0 or status > 128


def run_of(trial: Path) -> Path:
    """The directory of a trial's run."""
    return trial / "run"
