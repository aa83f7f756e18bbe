"""Looking for keys that came before: a task has all equal keys of the whole text, so it needs no other task.

The first of equal keys is the one that counts, in the order of the text, whoever looks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.prepare.running.task import Task
from towernmt.dataflow.prepare.tasks.grouped_file import Column, GroupedFile, write_grouped
from towernmt.dataflow.prepare.tasks.job import Job
from towernmt.dataflow.text.filters.duplicates import came_before


@dataclass(frozen=True)
class FindDuplicates(Task):
    """Attributes:
        job: of which it is.
        number: of this share of the keys.
    """

    job: Job
    number: int

    @classmethod
    def of(cls, job: Job, number: int) -> FindDuplicates:
        """The task."""
        share = [job.lines * edge // job.lookups for edge in (number, number + 1)]
        return cls(job.seen(number), share[1] - share[0], job, number)

    @property
    def title(self) -> str:
        return f"looking for duplicates, share {self.number + 1} of {self.job.lookups}"

    def run(self) -> None:
        parts = [GroupedFile(self.job.keys(part), self.number) for part in range(self.job.parts)]
        keys = np.frombuffer(b"".join(part.read(0) for part in parts), "<u8")
        seen = came_before(keys)
        columns = list(_seen_places(seen, parts))
        counts = np.array([len(places) for places in columns], np.int64)
        write_grouped(self.output, [Column(np.concatenate([np.zeros(0, "<i4"), *columns]), counts)], {})


def _seen_places(seen: NDArray[np.bool_], parts: list[GroupedFile]) -> Iterator[NDArray[np.int32]]:
    start = 0
    for part in parts:
        places = np.frombuffer(part.read(1), "<i4")
        yield places[seen[start:start + len(places)]]
        start += len(places)


def seen_in_part(job: Job, part: int, keys: int) -> NDArray[np.bool_]:
    """bool `[keys]`: which keys of a part came before, in the order of the text, when all tasks are done."""
    seen = np.zeros(keys, bool)
    for number in range(job.lookups):
        seen[np.frombuffer(GroupedFile(job.seen(number), part).read(0), "<i4")] = True
    return seen
