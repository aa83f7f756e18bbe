"""A task: a unit of work of a preparation that any process may do, and whose output file shows that it is done.

The output of a task is a pure function of its input, and one rename puts it into its path. So a task may be done
twice, by two processes at once, or again after one of them was killed, and the file is the same. `PreparationJob` has
the data that all tasks share, and the paths of the files that they leave for each other.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from towernmt.core.files import naming
from towernmt.dataflow.preparation.chunk_encoder import ChunkEncoder
from towernmt.dataflow.preparation.manifest import VOCABULARIES
from towernmt.dataflow.preparation.output_directory import WORK
from towernmt.dataflow.text.pair_filters import KEYS_PER_PAIR, PairFilter
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies


@dataclass(frozen=True)
class Task(ABC):
    """A task. It is small, because it is sent to other processes; large data are in files.

    Attributes:
        output: the file or directory that exists when the task is done.
        lines: number of lines of the text that it processes, for the progress.
    """

    output: Path
    lines: int

    @property
    def done(self) -> bool:
        """Whether its output exists."""
        return self.output.exists()

    @property
    @abstractmethod
    def title(self) -> str:
        """The work in messages: "encoding lines 1 to 65,536 of train.de"."""

    @abstractmethod
    def run(self) -> None:
        """Write the output.

        Raises:
            DataError: the text is invalid.
            OSError: a file cannot be read or written.
        """


@contextmanager
def atomic_output(output: Path) -> Iterator[Path]:
    """Yield a path for a file or a directory that is renamed to `output` if the block ends without an exception.

    Each process gets a different path. The parent directory of `output` must exist.
    """
    unfinished = output.with_name(f".{output.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with naming(output):
            yield unfinished
        if unfinished.is_dir():
            _rename_directory(unfinished, output)
        else:
            _flush(unfinished)
            os.replace(unfinished, output)
    except BaseException:
        if unfinished.is_dir():
            _remove_directory(unfinished)
        else:
            unfinished.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _rename_directory(unfinished: Path, output: Path) -> None:
    for path in unfinished.iterdir():
        _flush(path)
    try:
        os.rename(unfinished, output)
    except OSError:
        if not output.is_dir():
            raise
        _remove_directory(unfinished)      # another process has written the same content


def _remove_directory(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


CHUNKS_OF_A_PART = 16
"""Number of chunks of a part: some seconds of work, and not too many files. The result does not depend on it."""
_KEYS_AT_ONCE = 1 << 22     # number of keys that a task which finds duplicates has in memory


@dataclass(frozen=True)
class PreparationJob:
    """The data of a preparation that its tasks share.

    Attributes:
        key: identifies the text and the settings.
        stage: directory of the new preparation, which all workers read and write.
        pair_filter: filter of the pairs.
        lines: number of lines of the text.
        parts: number of parts of the text.
        shards: number of shards.
        seed: seed of the distribution to shards.
        factors: number of source factors.
        linked: whether the text has alignments.
        aligns: whether alignments are learned.
    """

    key: str
    stage: Path
    pair_filter: PairFilter
    lines: int
    parts: int
    shards: int
    seed: int
    factors: int
    linked: bool
    aligns: bool

    @property
    def work(self) -> Path:
        """Directory of the files that tasks leave for later tasks."""
        return self.stage / WORK

    @property
    def vocabularies(self) -> Path:
        """Directory of the vocabularies."""
        return self.stage / VOCABULARIES

    @property
    def lookups(self) -> int:
        """Number of tasks that find duplicates; 0 if duplicates are kept."""
        keys = self.lines * KEYS_PER_PAIR[self.pair_filter.duplicates]
        return -(-keys // _KEYS_AT_ONCE)

    def encoded(self, part: int) -> Path:
        """Return the path of the encoded pairs of a part, in the order of the text, if duplicates are dropped."""
        return self.work / f"part-{part:05d}.encoded.npz"

    def keys(self, part: int) -> Path:
        """Return the path of the keys of a part, grouped by the task that looks them up."""
        return self.work / f"part-{part:05d}.keys"

    def repeated_keys(self, lookup: int) -> Path:
        """Return the path of the indices of the keys that occurred before, grouped by part."""
        return self.work / f"lookup-{lookup:05d}.seen"

    def distributed(self, part: int) -> Path:
        """Return the path of the pairs of a part, grouped by shard, and their statistics."""
        return self.work / f"part-{part:05d}.distributed"

    def alignment_model(self, direction: int) -> Path:
        """Return the path of the alignment model from source to target (0) or from target to source (1)."""
        return self.work / f"alignment-{direction}.npz"

    def shard(self, number: int) -> Path:
        """Return the path of a finished shard."""
        return self.stage / f"shard-{number:05d}.pairs"

    def shard_info(self, number: int) -> Path:
        """Return the path of the entry of a shard in the manifest."""
        return self.work / f"shard-{number:05d}.json"

    def lines_of_share(self, number: int, shares: int) -> int:
        """Return the number of lines in one of several equal shares of the text."""
        return self.lines * (number + 1) // shares - self.lines * number // shares

    def encoder(self) -> ChunkEncoder:
        """Return the encoder, whose vocabularies a process reads once."""
        return _encoder(self)

    def id_dtype(self) -> np.dtype:
        """Return the type of the ids of all shards."""
        return _encoder(self).dtype


@dataclass(frozen=True)
class NumberedTask(Task):
    """One of the tasks of a kind.

    Attributes:
        job: the preparation.
        number: index of the part, share or shard that the task processes.
    """

    job: PreparationJob
    number: int

    @classmethod
    def of_shares(cls, job: PreparationJob, output: Callable[[int], Path], shares: int) -> list[Self]:
        """Return a task for each of `shares` equal shares of the work.

        Args:
            job: the preparation.
            output: returns the output of the task with a number.
            shares: number of tasks.
        """
        return [cls(output(number), job.lines_of_share(number, shares), job, number) for number in range(shares)]


@lru_cache(maxsize=1)
def _encoder(job: PreparationJob) -> ChunkEncoder:
    return ChunkEncoder(*load_vocabularies(job.vocabularies)[:2], job.pair_filter)
