"""Base classes of the programs that `quality.py` compares, towernmt as one of them, and `run_program`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from quality_clock import read_marks
from quality_text import read_lines

from towernmt import __version__
from towernmt.core.errors import DataError, SettingsError, UnfinishedError
from towernmt.core.files import write_text
from towernmt.plots.recorded_runs import read_run

HERE = Path(__file__).parent
BEAM = 5
LONGEST = 100
"""Length limit of OpenNMT-tf's translations, in subwords. Its default of 250 takes minutes with a poor model."""
GRACE = 120.0
"""Seconds that a program has to save a checkpoint after SIGTERM."""


class Mark(NamedTuple):
    """A point in time of a training at which quality is measured.

    Attributes:
        minutes: requested minutes.
        minute: actual minutes of training.
        updates, target_tokens: amounts of training so far.
        candidates: checkpoints that the recipe allows; the validation sentences select one.
    """

    minutes: float
    minute: float
    updates: int
    target_tokens: int
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Options that all trainings share.

    Attributes:
        work: directory of all output.
        data: directory of prepared data.
        minutes: minutes of training, ascending.
        every: minutes between a peer's marks.
        threads: number of threads, equal to the number of processors.
        shape: "recipe" or "tiny".
    """

    work: Path
    data: Path
    minutes: tuple[float, ...]
    every: float
    threads: int
    shape: str

    @property
    def pieces(self) -> Path:
        """Directory of the subword files."""
        return self.work / "pieces"


class Peer(ABC):
    """A program to compare. An interrupted training resumes.

    Attributes:
        name: name of the program.
        variant: name of the recipe.
        version: version that the program reports.
        folder: directory of its run.
        reads_pieces: whether it translates subwords to subwords instead of text to text.
    """

    name: str
    reads_pieces = True

    def __init__(self, plan: Plan, variant: str) -> None:
        self.plan, self.variant = plan, variant
        self.folder = plan.work / "runs" / f"{self.name}-{variant}-{plan.threads}cpu"

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def train(self) -> None:
        """Train to the end, resuming an interrupted training."""

    @abstractmethod
    def marks(self) -> list[Mark]:
        """Return the marks to score."""

    @abstractmethod
    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        """Return the translations of `source`.

        Args:
            checkpoint: path of a checkpoint, or of several with commas between them.
            part: "valid" or "test", or another name for other text.
            source: text of this part, in subwords if `reads_pieces`.
        """


class Ours(Peer):
    """towernmt with `--defaults automatic`: one run per training time, since the rate decays to the end of a run."""

    name, version, reads_pieces = "towernmt", __version__, False

    def train(self) -> None:
        for minutes in self.plan.minutes:
            run = self.run_folder(minutes)
            if not self._finished(run).exists():
                run_program([sys.executable, "-m", "towernmt", "train", "--data", str(self.plan.data), "--logdir",
                             str(run), "--defaults", "automatic", "--set", f"train.minutes={minutes:g}"],
                            self.folder / f"{minutes:g}.log")
                write_text(self._finished(run), "")

    def marks(self) -> list[Mark]:
        marks = []
        for minutes in self.plan.minutes:
            last = read_run(self.run_folder(minutes), self.name).rows[-1]
            marks.append(Mark(minutes, minutes, int(last["global_step"]), int(last["target_tokens_trained"]),
                              (str(self.run_folder(minutes)),)))
        return marks

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        output = self.folder / "translation.txt"
        run_program([sys.executable, "-m", "towernmt", "translate", "--model", checkpoint, "--beam", str(BEAM),
                     "--input", str(source), "--output", str(output)], self.folder / "translate.log")
        return read_lines(output)

    def run_folder(self, minutes: float) -> Path:
        """Return the directory of the run of these minutes."""
        return self.folder / f"{minutes:g}"

    def _finished(self, run: Path) -> Path:
        return run.with_name(run.name + ".finished")


class Marked(Peer):
    """A peer with one training, whose marks the clock of `quality_clock.py` sets.

    Args:
        plan: common options.
        variant: name of the recipe.
        program: Python interpreter in which the peer is installed, or the peer's own program.
        further_options: options that are appended to the recipe.

    Raises:
        SettingsError: the peer is not installed there.
    """

    modules: tuple[str, ...]
    """Modules to import and to report with their versions."""
    option: str
    file = "a Python that has it"
    """The file that the option names."""

    def __init__(self, plan: Plan, variant: str, program: str | None, further_options: Sequence[str] = ()) -> None:
        super().__init__(plan, variant)
        if program is None:
            raise SettingsError(f"{self.name} needs {self.option} FILE, {self.file}; or pass --only.")
        self.program, self._further_options = program, list(further_options)
        self._version = self._ask_version()

    @property
    def version(self) -> str:
        return self._version

    def _ask_version(self) -> str:
        code = f"import {', '.join(self.modules)}\nprint({', '.join(f'{name}.__version__' for name in self.modules)})"
        done = self._ask("-c", code)
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise SettingsError(f"{self.option} {self.program} cannot import {' and '.join(self.modules)} ({reason}): "
                                "install them there.")
        return " ".join(f"{name} {version}" for name, version in
                        zip(self.modules, done.stdout.strip().split("\n")[-1].split(), strict=True))

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program, and return its status and its output."""
        try:
            return subprocess.run([self.program, *arguments], env=peer_environment(self.plan.threads), check=False,
                                  capture_output=True, text=True)
        except OSError as error:
            raise SettingsError(f"{self.option} {self.program} cannot be started: {error.strerror}.") from error

    def train(self) -> None:
        records = self._clock_records()
        if not records or records[-1]["minute"] < self.plan.minutes[-1]:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.prepare()
            checkpoint = records[-1]["checkpoint"] if records else None
            self._run([self.python, str(HERE / self.driver[0]), *self.driver[1:], str(self.folder),
                       str(self.plan.minutes[-1]), str(self.plan.every), *self.training(checkpoint)], "train.log")

    driver: tuple[str, ...]
    """Script with the clock, and its first arguments."""

    @property
    def python(self) -> str:
        """The Python that runs the driver."""
        return self.program

    def prepare(self) -> None:
        """Write the files that the peer needs for training."""

    @abstractmethod
    def training(self, checkpoint: str | None) -> list[str]:
        """Return the arguments of the peer's training program, to start from scratch or from a checkpoint."""

    def marks(self) -> list[Mark]:
        records = [mark for mark in self._clock_records() if mark["mark"] is not None]
        checkpoints = [mark["checkpoint"] for mark in records]
        return [Mark(mark["mark"], mark["minute"], mark["updates"], mark["target_tokens"],
                     self.candidates(checkpoints[:number])) for number, mark in enumerate(records, start=1)]

    def _clock_records(self) -> list[dict[str, Any]]:
        """Return the records of the clock.

        Raises:
            DataError: the file of records is damaged.
        """
        try:
            return read_marks(self.folder)
        except ValueError as error:
            raise DataError(str(error)) from error

    @abstractmethod
    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        """Return the checkpoints, or comma-separated averages, that the recipe allows among `checkpoints`."""

    def _run(self, command: list[str], log: str, output: Path | None = None) -> None:
        run_program(command, self.folder / log, output, peer_environment(self.plan.threads))


def peer_environment(threads: int) -> dict[str, str]:
    """Return the environment variables for a peer."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # fairseq's checkpoints hold more than weights; PyTorch 2.6 and later refuses them by default.
    return {**ours, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def run_program(command: Sequence[str], log: Path, output: Path | None = None,
                environment: dict[str, str] | None = None) -> None:
    """Run a program to its end in a new session, and stop it when this program is interrupted.

    Args:
        command: program and arguments.
        log: file to which the program's output is appended.
        output: file for standard output; None means the log.
        environment: environment variables; None inherits them.

    Raises:
        UnfinishedError: the program failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as log_file, (output or log).open("wb" if output else "ab") as output_file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output_file,
                                   stderr=log_file, start_new_session=True)
        try:
            status = process.wait()
        except BaseException:
            _end(process)
            raise
    if status:
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise UnfinishedError(f"{' '.join(command[:4])} ... ended with status {status}: {last} (full log: {log})")


def _end(process: subprocess.Popen[Any]) -> None:
    """Terminate a program, wait for `GRACE` seconds or a second interrupt, and kill its process group."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
