"""The programs that `quality.py` compares. Each trains with its own recipe and translates with its own search."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from quality_clock import read_marks
from quality_text import PARTS, read_lines

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
            run = self._run(minutes)
            if not self._finished(run).exists():
                run_program([sys.executable, "-m", "towernmt", "train", "--data", str(self.plan.data), "--logdir",
                             str(run), "--defaults", "automatic", "--set", f"train.minutes={minutes:g}"],
                            self.folder / f"{minutes:g}.log")
                write_text(self._finished(run), "")

    def marks(self) -> list[Mark]:
        marks = []
        for minutes in self.plan.minutes:
            last = read_run(self._run(minutes), self.name).rows[-1]
            marks.append(Mark(minutes, minutes, int(last["global_step"]), int(last["target_tokens_trained"]),
                              (str(self._run(minutes)),)))
        return marks

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        output = self.folder / "translation.txt"
        run_program([sys.executable, "-m", "towernmt", "translate", "--model", checkpoint, "--beam", str(BEAM),
                     "--input", str(source), "--output", str(output)], self.folder / "translate.log")
        return read_lines(output)

    def _run(self, minutes: float) -> Path:
        return self.folder / f"{minutes:g}"

    def _finished(self, run: Path) -> Path:
        return run.with_name(run.name + ".finished")


class Marked(Peer):
    """A peer with one training, whose marks the clock of `quality_clock.py` sets.

    Args:
        plan: common options.
        variant: name of the recipe.
        python: Python interpreter in which the peer is installed.

    Raises:
        SettingsError: the peer is not installed there.
    """

    modules: tuple[str, ...]
    """Modules to import and to report with their versions."""
    option: str

    def __init__(self, plan: Plan, variant: str, python: str | None) -> None:
        super().__init__(plan, variant)
        if python is None:
            raise SettingsError(f"{self.name} needs {self.option} FILE, a Python that has it; or pass --only.")
        self.python = python
        self._version = self._ask_version()

    @property
    def version(self) -> str:
        return self._version

    def _ask_version(self) -> str:
        code = f"import {', '.join(self.modules)}\nprint({', '.join(f'{name}.__version__' for name in self.modules)})"
        try:
            done = subprocess.run([self.python, "-c", code], env=peer_environment(self.plan.threads), check=False,
                                  capture_output=True, text=True)
        except OSError as error:
            raise SettingsError(f"{self.option} {self.python} cannot be started: {error.strerror}.") from error
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise SettingsError(f"{self.option} {self.python} cannot import {' and '.join(self.modules)} ({reason}): "
                                "install them there.")
        return " ".join(f"{name} {version}" for name, version in
                        zip(self.modules, done.stdout.strip().split("\n")[-1].split(), strict=True))

    def train(self) -> None:
        records = self._clock_records()
        if not records or records[-1]["minute"] < self.plan.minutes[-1]:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.prepare()
            checkpoint = records[-1]["checkpoint"] if records else None
            self._run([str(HERE / self.driver[0]), *self.driver[1:], str(self.folder), str(self.plan.minutes[-1]),
                       str(self.plan.every), *self.training(checkpoint)], "train.log")

    driver: tuple[str, ...]
    """Script with the clock, and its first arguments."""

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

    def _run(self, arguments: list[str], log: str, output: Path | None = None) -> None:
        run_program([self.python, *arguments], self.folder / log, output, peer_environment(self.plan.threads))


class Fairseq(Marked):
    """fairseq with the recipe for IWSLT'14 German-English in its examples/translation/README.md.

    The recipe keeps the best checkpoint by validation. Here it is selected from the marks so far, and this validation
    does not count as training time.
    """

    name, modules, option = "fairseq", ("fairseq", "torch"), "--fairseq-python"
    driver = ("quality_fairseq.py",)

    RECIPE = ("--arch transformer_iwslt_de_en --optimizer adam --adam-betas (0.9,0.98) --clip-norm 0.0 --lr 5e-4 "
              "--lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 "
              "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096")
    SHAPES = {"recipe": "--share-decoder-input-output-embed",
              "tiny": "--share-all-embeddings " + " ".join(
                  f"--{side}-layers 3 --{side}-embed-dim 256 --{side}-ffn-embed-dim 1024 --{side}-attention-heads 4"
                  for side in ("encoder", "decoder"))}

    def __init__(self, plan: Plan, variant: str, python: str | None, further_options: Sequence[str] = ()) -> None:
        super().__init__(plan, variant, python)
        self._further_options = list(further_options)
        self._data = plan.work / "fairseq"

    def prepare(self) -> None:
        self._binarise(self._data, *(f"--{part}pref={self.plan.pieces / part}" for part in PARTS))

    def _binarise(self, folder: Path, *arguments: str) -> None:
        """Write subwords as fairseq's binary data to `folder`, unless they are there."""
        if not (folder / "finished").exists():
            self._run(["-m", "fairseq_cli.preprocess", "--source-lang", "src", "--target-lang", "tgt",
                       "--joined-dictionary", "--srcdict", str(self.plan.pieces / "fairseq.txt"), "--destdir",
                       str(folder), "--workers", str(self.plan.threads), *arguments], "prepare.log")
            write_text(folder / "finished", "")

    def training(self, checkpoint: str | None) -> list[str]:
        return [str(self._data), "--source-lang", "src", "--target-lang", "tgt", *self.RECIPE.split(),
                *self.SHAPES[self.plan.shape].split(), "--cpu", "--no-save", "--log-format", "json", "--log-interval",
                "50", *(["--restore-file", checkpoint] if checkpoint else []), *self._further_options]

    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        return tuple(checkpoints)

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        # fairseq-fixed drops the last sentences if batches must be multiples of 8, its default.
        output = self.folder / "translation.txt"
        data, subset = self._data, part
        if part not in PARTS:
            data, subset = self.folder / part, "test"
            self._binarise(data, "--only-source", f"--testpref={source.with_suffix('')}")
            for dictionary in self._data.glob("dict.*.txt"):
                shutil.copy(dictionary, data)
        self._run(["-m", "fairseq_cli.generate", str(data), "--source-lang", "src", "--target-lang", "tgt",
                   "--path", checkpoint, "--gen-subset", subset, "--beam", str(BEAM), "--max-len-a", "1.2",
                   "--max-len-b", "10", "--batch-size", "128", "--required-batch-size-multiple", "1", "--cpu"],
                  "translate.log", output)
        return generated(output.read_text(encoding="utf-8"))


def generated(text: str) -> list[str]:
    """Return the translations in `fairseq-generate`'s output in input order, from the lines that begin with `H-`."""
    translations = {}
    for line in text.split("\n"):
        if line.startswith("H-"):
            number, _, pieces = line.removeprefix("H-").split("\t")
            translations[int(number)] = pieces
    return [translations[number] for number in sorted(translations)]


class OpenNMTTF(Marked):
    """OpenNMT-tf with its automatic configuration (`--auto_config`), as its documentation recommends.

    OpenNMT-tf averages the last 8 checkpoints at the end. Here the validation sentences select the average of the last
    8 marks or the last checkpoint.
    """

    name, modules, option = "opennmt-tf", ("opennmt", "tensorflow"), "--opennmt-python"
    driver = ("quality_onmttf.py", "train")
    AVERAGED = 8
    SHAPES = {"recipe": ("--model_type", "Transformer"),
              "tiny": ("--model", str(HERE / "quality_onmttf_model.py"))}

    def __init__(self, plan: Plan, variant: str, python: str | None, config_file: Path | None = None) -> None:
        super().__init__(plan, variant, python)
        self._config_file = config_file

    def prepare(self) -> None:
        import yaml

        pieces = self.plan.pieces
        vocabulary = str(pieces / "opennmt.txt")
        write_text(self._configuration, yaml.safe_dump({
            "model_dir": str(self.folder / "model"),
            "data": {"train_features_file": str(pieces / "train.src"), "train_labels_file": str(pieces / "train.tgt"),
                     "source_vocabulary": vocabulary, "target_vocabulary": vocabulary},
            "params": {"beam_width": BEAM, "maximum_decoding_length": LONGEST},
            # The clock saves the checkpoints; averages are made after training.
            "train": {"save_checkpoints_steps": None, "keep_checkpoint_max": 10_000, "average_last_checkpoints": 0}}))

    @property
    def _configuration(self) -> Path:
        return self.folder / "configuration.yml"

    def _main(self, *arguments: str) -> list[str]:
        threads = str(self.plan.threads)
        config_files = [self._configuration, *([self._config_file] if self._config_file else [])]
        return ["--config", *map(str, config_files), "--auto_config", *self.SHAPES[self.plan.shape],
                "--intra_op_parallelism_threads", threads, "--inter_op_parallelism_threads", threads, *arguments]

    def training(self, checkpoint: str | None) -> list[str]:
        path_option = ("--checkpoint_path", checkpoint) if checkpoint else ()
        return self._main(*path_option, "train", *(["--continue_from_checkpoint"] if checkpoint else []))

    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        last = checkpoints[-self.AVERAGED:]
        return (last[-1],) if len(last) == 1 else (last[-1], ",".join(last))

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        if "," in checkpoint:
            checkpoint = self._mean(checkpoint)
        output = self.folder / "translation.txt"
        self._run(["-m", "opennmt.bin.main", *self._main("--checkpoint_path", checkpoint, "infer", "--features_file",
                   str(source), "--predictions_file", str(output))], "translate.log")
        return read_lines(output)

    def _mean(self, checkpoints: str) -> str:
        """Average checkpoints and return the directory of the average."""
        steps = [checkpoint.rpartition("-")[2] for checkpoint in checkpoints.split(",")]
        folder = self.folder / f"mean-{steps[0]}-{steps[-1]}"
        if not (folder / "checkpoint").exists():
            self._run([str(HERE / self.driver[0]), "average", checkpoints, *self._main(
                "average_checkpoints", "--output_dir", str(folder), "--max_count", str(self.AVERAGED))], "average.log")
        return str(folder)


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
