"""A tiny corpus, a run that has partly learned it, and the example programs as modules."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = ["model.hidden_size=32", "model.filter_size=64", "model.heads=2", "model.encoder_layers=1",
        "model.decoder_layers=1", "model.residual_dropout=0.0", "model.embedding_dropout=0.0",
        "data.batch_tokens=512", "validation.steps=0", "log.steps=1", "train.deterministic=false",
        "optimizer.learning_rate=0.01", "schedule.warmup_steps=20", "search.beam_size=1"]


def write_text(directory: Path, seed: int, count: int) -> tuple[list[str], list[str]]:
    """Write pairs in which each word of the source, in order, is one word of the target."""
    chance = random.Random(seed)
    words = [first + second for first in "bdfgkl" for second in "aeio"]
    sources = [" ".join(chance.choices(words, k=chance.randint(3, 6))) for _ in range(count)]
    targets = [" ".join(word[::-1] + "n" for word in line.split()) for line in sources]
    directory.mkdir(exist_ok=True)
    for name, lines in (("source", sources), ("target", targets)):
        (directory / name).write_text("".join(f"{line}\n" for line in lines))
    return sources, targets


@dataclass
class ExamplePaths:
    """Directories of text, prepared data and a finished run.

    Attributes:
        text: a directory with the files `source` and `target`.
        data: the prepared data, with one vocabulary for both languages.
        run: a finished run of 100 steps.
    """

    text: Path
    data: Path
    run: Path


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> ExamplePaths:
    from towernmt.cli.main import main

    directory = tmp_path_factory.mktemp("examples")
    paths = ExamplePaths(directory / "text", directory / "data", directory / "run")
    write_text(paths.text, 3, 300)
    write_text(directory / "valid", 4, 24)
    files = [f"--{kind}{side}={directory / ('valid' if kind else 'text') / side}"
             for kind in ("", "valid-") for side in ("source", "target")]
    assert main(["prepare", *files, "--vocab-kind", "word", "--shared-vocab", f"--output={paths.data}"]) == 0
    assert main(["train", "--defaults=fixed", f"--data={paths.data}", f"--logdir={paths.run}", "--set", *TINY,
                 "train.steps=100"]) == 0
    return paths


@pytest.fixture(scope="session")
def factored(paths: ExamplePaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare the same text with a source factor."""
    from towernmt.cli.main import main

    directory = tmp_path_factory.mktemp("factored")
    lines = (paths.text / "source").read_text().splitlines()
    (directory / "source").write_text("".join(" ".join(f"{word}|{word[0]}" for word in line.split()) + "\n"
                                              for line in lines))
    assert main(["prepare", f"--source={directory / 'source'}", f"--target={paths.text / 'target'}", "--vocab-kind",
                 "word", "--source-factors=1", f"--output={directory / 'data'}"]) == 0
    return directory / "data"


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Return settings of a model and a training that takes a second."""
    return TINY


@pytest.fixture(scope="session")
def example() -> Callable[[str], Any]:
    """Return a function: `example("hooks")` is the module examples/hooks.py."""
    def load(name: str) -> Any:
        if str(EXAMPLES) not in sys.path:
            sys.path.insert(0, str(EXAMPLES))       # like Python, which lets a program import the files next to it
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def scalars() -> Callable[[Path, str], list[float]]:
    """Return the values of a scalar over the steps of a run."""
    def read(run: Path, name: str) -> list[float]:
        entries = map(json.loads, (run / "log" / "stats.jsonl").read_text().splitlines())
        return [entry[name] for entry in entries if name in entry]

    return read


@pytest.fixture(scope="session")
def weights() -> Callable[[Path], dict[str, Any]]:
    """Return every variable of a run's last checkpoint."""
    def read(run: Path) -> dict[str, Any]:
        from tests.variables import checkpoint_values
        from towernmt.run.directory import RunDirectory

        return checkpoint_values(Path(RunDirectory(run).checkpoint("last")).parent)

    return read
