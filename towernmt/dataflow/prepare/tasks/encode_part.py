"""Encoding a part of the text: from lines to pairs of ids by shard, or, where duplicates are dropped, to their keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.prepare.annotations import PairTexts
from towernmt.dataflow.prepare.chunk_encoder import EncodedChunk
from towernmt.dataflow.prepare.running.task import Task
from towernmt.dataflow.prepare.tasks.deal import write_dealt
from towernmt.dataflow.prepare.tasks.encoded_chunks import write_chunks
from towernmt.dataflow.prepare.tasks.grouped_file import Column, write_grouped
from towernmt.dataflow.prepare.tasks.job import Job


@dataclass(frozen=True)
class EncodePart(Task):
    """Attributes:
        job: of which it is.
        number: of the part.
        texts: its lines.
    """

    job: Job
    number: int
    texts: PairTexts

    @classmethod
    def of(cls, job: Job, number: int, texts: PairTexts) -> EncodePart:
        """The task; without duplicates to drop, the pairs are dealt at once."""
        output = job.encoded(number) if job.lookups else job.dealt(number)
        return cls(output, texts.source.lines, job, number, texts)

    @property
    def title(self) -> str:
        return f"encoding {self.texts.source.title}"

    @property
    def done(self) -> bool:
        # What was encoded goes when it has been dealt.
        return self.output.exists() or self.job.dealt(self.number).exists()

    def run(self) -> None:
        encoder = self.job.encoder()
        chunks = [encoder(*texts) for texts in self.texts.chunks()]
        if not self.job.lookups:
            write_dealt(self.job, self.number, chunks)
            return
        write_grouped(self.job.keys(self.number), by_lookup(_keys(chunks), self.job.lookups), {})
        write_chunks(self.output, chunks)


def _keys(chunks: list[EncodedChunk]) -> NDArray[np.uint64]:
    return np.concatenate([chunk.keys.ravel() for chunk in chunks if chunk.keys is not None])


def by_lookup(keys: NDArray[np.uint64], lookups: int) -> list[Column]:
    """Keys and their places (int32 `[keys]`), by the task that looks them up; in each in the order of the text.

    Equal keys have the same task, whatever the part.

    Args:
        keys: uint64 `[keys]`, of a part, in the order of the text.
        lookups: number of tasks.
    """
    whose = (keys >> np.uint64(32)) % np.uint64(lookups)
    order = np.argsort(whose, kind="stable")
    counts = np.bincount(whose.astype(np.int64), minlength=lookups)
    return [Column(keys[order], counts), Column(order.astype("<i4"), counts)]
