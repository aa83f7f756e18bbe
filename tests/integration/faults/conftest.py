"""A corpus of distinct pairs in files, tables and objects, and training that counts them."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.cli.main import main
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabulary

PAIRS = 300
WORDS = [f"p{number}" for number in range(PAIRS)]
SMALL = ["data.batch_tokens=40", "data.queue_capacity=2", "checkpoint.steps=4", "checkpoint.keep=2",
         "validation.steps=0", "log.steps=10"]
"""About eight pairs a batch and 38 batches an epoch; the input is at most 70 pairs or so ahead of training."""
SMALL_WINDOWS = "data.window=25"
"""For text that is not prepared, which is read in windows."""


@dataclass(frozen=True)
class NumberedCorpus:
    """Pairs that each have a unique word, and a vocabulary of these words."""

    pairs: list[tuple[str, str]]
    vocabulary: Path

    def tsv(self, pairs: Sequence[tuple[str, str]] | None = None) -> bytes:
        """Return the pairs, or some of them, as lines of two columns."""
        return "".join(f"{source}\t{target}\n" for source, target in pairs or self.pairs).encode()

    def rows(self) -> str:
        """Return the pairs as values of an INSERT: (id, source, target)."""
        return ", ".join(f"({number}, '{source}', '{target}')" for number, (source, target) in enumerate(self.pairs))

    def fill(self, server: Any, table: str = "numbered") -> str:
        """Put the pairs into a table of a server, and return the options of its URI."""
        server.execute(f"DROP TABLE IF EXISTS {table}",
                       f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, source TEXT NOT NULL, target TEXT NOT NULL)",
                       f"INSERT INTO {table} VALUES {self.rows()}")
        return f"table={table}&page=10"

    def sqlite(self, path: Path, pairs: Sequence[tuple[str, str]]) -> str:
        """Write some pairs into an SQLite database, and return its URI."""
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE pairs (id INTEGER PRIMARY KEY, source TEXT NOT NULL, target TEXT NOT NULL)")
            database.executemany("INSERT INTO pairs (source, target) VALUES (?, ?)", pairs)
        database.close()
        return f"sqlite:///{path}?table=pairs&page=10"

    def assert_counted_once(self, counts: Any, epochs: int) -> None:
        """Assert that each pair was trained on once in each of the first epochs, and nothing else was."""
        vocabulary = load_vocabulary(self.vocabulary)
        for epoch, row in enumerate(counts):
            found = {vocabulary.id_to_piece(int(word)): float(row[word]) for word in row.nonzero()[0]}
            assert found == ({word: 1.0 for word in WORDS} if epoch < epochs else {}), f"epoch {epoch + 1}"


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> NumberedCorpus:
    """Return `PAIRS` pairs such as `p7 x x`, `p7 y y y`: lengths vary, and the first word is unique."""
    vocabulary = tmp_path_factory.mktemp("numbered") / "both.words"
    vocabulary.write_text("".join(f"{piece}\n" for piece in [*SPECIAL_PIECES, "x", "y", *WORDS]))
    pairs = [(" ".join([word, *"x" * (number * 7 % 5)]), " ".join([word, *"y" * (number % 6)]))
             for number, word in enumerate(WORDS)]
    return NumberedCorpus(pairs, vocabulary)


@pytest.fixture(scope="session")
def small() -> Callable[[bool], list[str]]:
    """Return `small(prepared)`: settings of small batches and windows, and frequent checkpoints."""
    return lambda prepared: SMALL if prepared else [*SMALL, SMALL_WINDOWS]


@pytest.fixture(scope="session")
def prepared(numbered: NumberedCorpus) -> Callable[[Path], Path]:
    """Return `prepared(directory)`, which prepares the corpus in five shards."""
    def make(directory: Path) -> Path:
        text = directory.with_suffix(".tsv")
        text.write_bytes(numbered.tsv())
        vocabulary = str(numbered.vocabulary)
        prepare(PrepareSettings(str(text), output=str(directory), source_vocab=vocabulary, target_vocab=vocabulary,
                                shard_pairs=60))
        return directory

    return make


@pytest.fixture
def mixture(numbered: NumberedCorpus, tmp_path: Path) -> Path:
    """Distribute the corpus to two compressed texts, a TSV file and a database, and return their `corpora.yaml`."""
    pytest.importorskip("sqlalchemy")
    for side in (0, 1):
        with gzip.open(tmp_path / f"text.{'st'[side]}.gz", "wt") as file:
            file.writelines(pair[side] + "\n" for pair in numbered.pairs[:120])
    (tmp_path / "table.tsv").write_bytes(numbered.tsv(numbered.pairs[120:150]))
    base = numbered.sqlite(tmp_path / "base.db", numbered.pairs[150:])
    (tmp_path / "corpora.yaml").write_text(yaml.safe_dump({
        "sources": [{"uri": uri, "on_end": "drop"} for uri in (f"{tmp_path}/text.{{s,t}}.gz",
                                                               f"{tmp_path}/table.tsv", base)],
        "vocabulary": str(numbered.vocabulary)}))
    return tmp_path / "corpora.yaml"


@pytest.fixture
def shards(prepared: Callable[[Path], Path], tmp_path: Path) -> Path:
    """Return the directory of the prepared corpus."""
    return prepared(tmp_path / "prepared")


@pytest.fixture(scope="session")
def counting() -> ModuleType:
    """Return the module `counting_tower`, imported when a test needs it: it imports TensorFlow."""
    from tests.integration.faults import counting_tower

    return counting_tower


@dataclass(frozen=True)
class Ended:
    """The end of a training: its status, its errors and its last checkpoint.

    Attributes:
        status: exit status of the command.
        errors: its output on standard error.
        counts: how often the last checkpoint was trained on each pair; None without a checkpoint.
        steps: steps of the checkpoints.
    """

    status: int
    errors: str
    counts: Any
    steps: list[int]

    def the_error(self) -> str:
        """Return the one sentence on standard error of a command that failed."""
        assert self.status == 1 and "Traceback" not in self.errors, self.errors
        sentences = [line for line in self.errors.splitlines() if line.startswith("towernmt: ")]
        assert len(sentences) == 1, self.errors
        return sentences[0]


@pytest.fixture
def train(numbered: NumberedCorpus, counting: ModuleType, small: Callable[[bool], list[str]], tmp_path: Path,
          capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ended]]:
    """Return `train(data, *settings, at={step: action})`: `towernmt train` of a counting tower in this process."""
    def run(data: object, *settings: str, at: Any = None, more_callbacks: Any = lambda source: [],
            towers: int = 1, prepared: bool = False, logdir: str = "run") -> Ended:
        place = tmp_path / logdir
        vocabulary = [] if prepared else ["--vocabulary", str(numbered.vocabulary)]
        capfd.readouterr()
        with pytest.MonkeyPatch.context() as change:
            counting.install(change.setattr, at or {}, more_callbacks)
            status = main(["train", "--defaults=fixed", "--data", str(data), *vocabulary, "--logdir", str(place),
                           "--towers", str(towers), "--set", *small(prepared), *settings])
        steps = checkpoint_steps(place / "checkpoints")
        return Ended(status, capfd.readouterr().err, counting.counted(place) if steps else None, steps)

    yield run
