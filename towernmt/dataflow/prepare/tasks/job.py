"""What all tasks of a preparation know in common, and where they leave their files for each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from towernmt.dataflow.prepare.chunk_encoder import ChunkEncoder
from towernmt.dataflow.text.filters.duplicates import KEYS
from towernmt.dataflow.text.filters.pair_filter import PairFilter
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies

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
        keys = self.lines * KEYS[self.pair_filter.duplicates]
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
