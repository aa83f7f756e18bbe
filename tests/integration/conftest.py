"""A tiny corpus, a tiny model, and real processes that train it, most of them forks (`tests/fork_server.py`).

No test waits by sleeping: it reads a process's log up to a line, or the process stops itself (see `recorded_train.py`).
A watchdog ends a process that hangs, which fails its test.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fork_server import ForkServer
from tests.program_process import Process, Result

RECORDED = Path(__file__).with_name("recorded_train.py")

TINY_MODEL = ["model.hidden_size=32", "model.filter_size=64", "model.heads=2", "model.encoder_layers=1",
              "model.decoder_layers=1"]
TINY_TRAINING = [*TINY_MODEL, "data.batch_tokens=256", "optimizer.learning_rate=0.01",
                 "schedule.warmup_steps=30", "log.steps=1", "search.beam_size=2"]
LONG_RUN = [*TINY_TRAINING, "optimizer.name=muon", "model.softmax_sample=0.5",
            "model.residual_dropout=0.1", "model.attention_dropout=0.1", "train.steps=120",
            "checkpoint.steps=24", "validation.steps=40", "checkpoint.keep_best=2"]
"""Ten epochs; Muon, a sampled softmax, dropout, checkpoints, validation and best checkpoints."""


@pytest.fixture
def start(request: pytest.FixtureRequest, next_server: Callable[[], ForkServer], tmp_path: Path
          ) -> Iterator[Callable[..., Process]]:
    """Return `start`: `start("train", "--data", ...)` starts `towernmt train`; with `program=` another Python program.

    In a fork, TensorFlow optimises graphs only if the test is marked `optimized`. With `fork=False` the program starts
    in a new interpreter, which imports TensorFlow.
    """
    yield from _starter(request.node, next_server, tmp_path)


@pytest.fixture(scope="module")
def module_start(request: pytest.FixtureRequest, next_server: Callable[[], ForkServer],
                 tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Process]]:
    """Return `start` for the fixtures of a module."""
    yield from _starter(request.node, next_server, tmp_path_factory.mktemp("processes"))


def is_optimized(node: Any) -> bool:
    """Return whether a test or a module is marked `optimized`."""
    return node.get_closest_marker("optimized") is not None


def _starter(node: Any, next_server: Callable[[], ForkServer], directory: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []
    optimizes = is_optimized(node)

    def start(*arguments: str | Path, program: Sequence[str | Path] = ("-m", "towernmt"), fork: bool = True) -> Process:
        started.append(Process([*program, *arguments], directory, next_server() if fork else None, optimizes))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Return a replacement of `start("train", ...).wait()` that runs in this process, without an import of TensorFlow.

    The log is only in the run's `log.log`.
    """
    from towernmt.cli.main import main

    place = tmp_path_factory.mktemp("here")

    def run(*arguments: str | Path) -> Result:
        output, errors = StringIO(), StringIO()
        with chdir(place), redirect_stdout(output), redirect_stderr(errors):
            status = main([*map(str, arguments)])
        return Result(status, output.getvalue(), errors.getvalue())

    return run


@dataclass
class Corpus:
    """Raw text and the data that `towernmt prepare` made from it."""

    directory: Path
    prepared: Path

    def file(self, name: str) -> Path:
        return self.directory / name


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Prepare 400 pairs in four shards: each word of the source, in order, is one word of the target."""
    from towernmt.cli.main import main

    directory = tmp_path_factory.mktemp("corpus")
    chance = random.Random(3)
    words = [first + second for first in "bdfgkl" for second in "aeio"]
    sources = [" ".join(chance.choices(words, k=chance.randint(4, 7))) for _ in range(400)]
    targets = [" ".join(word[::-1] + "n" for word in line.split()) for line in sources]
    for name, count in (("train", 400), ("valid", 12)):
        directory.joinpath(f"{name}.source").write_text("".join(f"{line}\n" for line in sources[:count]))
        directory.joinpath(f"{name}.target").write_text("".join(f"{line}\n" for line in targets[:count]))
    options = [x for kind in ("source", "target") for x in (
        f"--{kind}", directory / f"train.{kind}", f"--valid-{kind}", directory / f"valid.{kind}")]
    assert main(["prepare", *map(str, options), "--vocab-kind", "word", "--shared-vocab", "--shard-pairs", "100",
                 "--output", str(directory / "data")]) == 0
    return Corpus(directory, directory / "data")


def train_arguments(data: Path, logdir: Path, *settings: str) -> list[str | Path]:
    """Return arguments that disable automatic settings, which depend on the machine and take seconds to measure."""
    return ["train", "--defaults", "fixed", "--data", data, "--logdir", logdir, "--set", *settings]


@pytest.fixture(scope="session")
def arguments() -> Callable[..., list[str | Path]]:
    """Return the arguments of `towernmt train` with settings."""
    return train_arguments


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Return settings of a model and a training that takes a second."""
    return TINY_TRAINING


@pytest.fixture(scope="session")
def long_run() -> list[str]:
    """Return the settings of the run that the fault tests compare with."""
    return LONG_RUN


@dataclass
class Run:
    """A finished run: its directory, and the record of each step."""

    logdir: Path
    steps: dict[int, dict[str, Any]]

    def copy(self, place: Path) -> Path:
        """Return a copy of the run's directory, which a test may damage."""
        return Path(shutil.copytree(self.logdir, place))


def read_steps(record: Path) -> dict[int, dict[str, Any]]:
    """Return the record of `recorded_train.py` by step; for a step that was made twice, the last one."""
    return {entry["step"]: entry for entry in map(json.loads, record.read_text().splitlines())}


@pytest.fixture(scope="session")
def recorded() -> Callable[[Path], dict[int, dict[str, Any]]]:
    """Return the function that reads a record of steps."""
    return read_steps


@pytest.fixture(scope="session")
def recording() -> Callable[..., list[str | Path]]:
    """Return the path of the program that trains like `towernmt train` and records each step in a file."""
    return lambda record, *faults: [RECORDED, record, *faults, "--"]


@pytest.fixture(scope="session")
def uninterrupted_runs(corpus: Corpus, next_server: Callable[[], ForkServer], tmp_path_factory: pytest.TempPathFactory
                       ) -> Callable[[bool], Run]:
    """Return a function that trains 120 steps without a stop, once for each value of its argument: see `Process`."""
    @cache
    def run(optimizes: bool) -> Run:
        directory = tmp_path_factory.mktemp("uninterrupted")
        command = [RECORDED, directory / "steps", "--", *train_arguments(corpus.prepared, directory / "run", *LONG_RUN)]
        result = Process(command, directory, next_server(), optimizes).wait()
        assert (result.status, result.errors) == (0, ""), result.text
        return Run(directory / "run", read_steps(directory / "steps"))

    return run


@pytest.fixture(scope="module")
def uninterrupted(request: pytest.FixtureRequest, uninterrupted_runs: Callable[[bool], Run]) -> Run:
    """Return the uninterrupted run whose graphs are like those of the module's forks."""
    return uninterrupted_runs(is_optimized(request.node))


def state_but_time(checkpoint: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's `state.json` without the duration of the training."""
    state = json.loads((checkpoint / "state.json").read_text())
    assert state.pop("checksum")
    assert state["callbacks"]["progress"].pop("seconds") > 0 and state["callbacks"]["progress"]["target_tokens"] > 0
    return state


@pytest.fixture(scope="session")
def variables() -> Callable[[Path], dict[str, np.ndarray]]:
    """Return the function that reads every variable of a checkpoint."""
    from tests.variables import checkpoint_values

    return checkpoint_values


@pytest.fixture(scope="session")
def assert_same_end(variables: Callable[[Path], dict[str, np.ndarray]]) -> Callable[..., None]:
    """Return a function that asserts that two runs have the same final state, except times, and best checkpoints."""

    def check(logdir: Path, other: Path, step: int = 120) -> None:
        here, there = (run / "checkpoints" / f"step-{step}" for run in (logdir, other))
        found, expected = variables(here), variables(there)
        assert set(found) == set(expected)
        assert {"random_clock", "global_step", "learning_rate"} < set(found)
        assert any(name.endswith("/Adam_1") for name in found)
        for name, value in expected.items():
            assert np.array_equal(found[name], value), name
        assert state_but_time(here) == state_but_time(there)
        left_over = [*logdir.rglob(".*"), *logdir.rglob("*.new")]
        assert not left_over
        assert (logdir / "best").exists() == (other / "best").exists()
        if not (other / "best").exists():       # without validation
            return
        for name in ("best/record.json", "best/log"):
            assert (logdir / name).read_text() == (other / name).read_text()
        for entry in json.loads((other / "best/record.json").read_text()):
            best = f"best/step-{entry['step']}"
            found = variables(logdir / best)
            for name, value in variables(other / best).items():
                assert np.array_equal(found[name], value), name

    return check
