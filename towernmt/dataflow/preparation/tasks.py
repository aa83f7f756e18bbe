"""A task: a unit of work of a preparation that any process may do, and whose output file shows that it is done.

The output of a task is a pure function of its input, and one rename puts it into its path. So a task may be done
twice, by two processes at once, or again after one of them was killed, and the file is the same. `Job` has the data
that all tasks share, and the paths of the files that they leave for each other.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from towernmt.core.files import naming
from towernmt.dataflow.preparation.chunk_encoder import ChunkEncoder
from towernmt.dataflow.text.pair_filters import KEYS_PER_PAIR, PairFilter
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies


@dataclass(frozen=True)
class Task(ABC):
    """Small, and sent to other processes; what is large lies in files.

    Attributes:
        output: the file (or directory) that is there when the task is done.
        lines: how many lines of the text it stands for, for progress.
    """

    output: Path
    lines: int

    @property
    def done(self) -> bool:
        """Whether its output is there."""
        return self.output.exists()

    @property
    @abstractmethod
    def title(self) -> str:
        """What is done, for messages: "encoding lines 1 to 65,536 of train.de"."""

    @abstractmethod
    def run(self) -> None:
        """Write the output.

        Raises:
            DataError: the text is not as it should be.
            OSError: a file cannot be read or written.
        """


@contextmanager
def putting(output: Path) -> Iterator[Path]:
    """A path to write a file or a directory to, which is `output` when the block has ended without an exception.

    The path is unlike that of any other process. The directory of `output` has to be there.
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
        _remove_directory(unfinished)      # another process was first, with the same content


def _remove_directory(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


CHUNKS_OF_A_PART = 16
"""Chunks of a part: some seconds of work, and few enough files. What is written does not depend on it."""
_KEYS_AT_ONCE = 1 << 22     # that a task which looks for duplicates has in memory


@dataclass(frozen=True)
class Job:
    """A preparation, to its tasks.

    Attributes:
        key: stands for the text and the settings; another preparation has another.
        stage: directory of the new preparation, which every process that does tasks reads and writes.
        pair_filter: what is kept.
        lines: of the text.
        parts: of the text.
        shards: that the pairs are dealt to.
        seed: of the dealing.
        factors: source factors.
        linked: whether there are alignments.
        vocabularies: name of their directory in `stage`.
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
    vocabularies: str

    @property
    def work(self) -> Path:
        """Directory of the files by which tasks hand on what they did."""
        return self.stage / "work"

    @property
    def lookups(self) -> int:
        """Number of tasks that look for duplicates; 0: they are kept."""
        keys = self.lines * KEYS_PER_PAIR[self.pair_filter.duplicates]
        return -(-keys // _KEYS_AT_ONCE)

    def encoded(self, part: int) -> Path:
        """Pairs of a part as ids, in the order of the text, where duplicates are to be dropped."""
        return self.work / f"part-{part:05d}.encoded.npz"

    def keys(self, part: int) -> Path:
        """Keys of the pairs of a part, by the task that looks them up."""
        return self.work / f"part-{part:05d}.keys"

    def seen(self, lookup: int) -> Path:
        """Places of the keys that came before, by part."""
        return self.work / f"lookup-{lookup:05d}.seen"

    def dealt(self, part: int) -> Path:
        """Pairs of a part, by shard, and their statistics."""
        return self.work / f"part-{part:05d}.dealt"

    def shard(self, number: int) -> Path:
        """A finished shard."""
        return self.stage / f"shard-{number:05d}.pairs"

    def shard_info(self, number: int) -> Path:
        """What the manifest will say of a shard."""
        return self.work / f"shard-{number:05d}.json"

    def encoder(self) -> ChunkEncoder:
        """With the vocabularies, which a process reads once."""
        return _encoder(self)

    def id_dtype(self) -> np.dtype:
        """Of the ids of all shards."""
        return _encoder(self).dtype


@lru_cache(maxsize=1)
def _encoder(job: Job) -> ChunkEncoder:
    return ChunkEncoder(*load_vocabularies(job.stage / job.vocabularies)[:2], job.pair_filter)
