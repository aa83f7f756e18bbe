"""Writing a shard: its pairs from every part of the text, one after another."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Literal

from towernmt.dataflow.prepare.running.task import Task, putting
from towernmt.dataflow.prepare.tasks.grouped_file import GroupedFile
from towernmt.dataflow.prepare.tasks.job import Job
from towernmt.dataflow.prepared.shards import ShardInfo


@dataclass(frozen=True)
class WriteShard(Task):
    """Attributes:
        job: of which it is.
        number: of the shard.
    """

    job: Job
    number: int

    @classmethod
    def of(cls, job: Job, number: int) -> WriteShard:
        """The task."""
        share = [job.lines * edge // job.shards for edge in (number, number + 1)]
        return cls(job.shard_info(number), share[1] - share[0], job, number)

    @property
    def title(self) -> str:
        return f"writing shard {self.number + 1} of {self.job.shards}"

    def run(self) -> None:
        job = self.job
        path, parts = job.shard(self.number), [GroupedFile(job.dealt(part), self.number) for part in range(job.parts)]
        info = _info(job, path.name, parts)
        crc = 0
        with putting(path) as unfinished, open(unfinished, "wb") as file:
            file.write(info.header())
            for column in range(len(info.columns())):
                for part in parts:
                    data = part.read(column)
                    crc = zlib.crc32(data, crc)
                    file.write(data)
            info = replace(info, crc32=crc)
            file.seek(0)
            file.write(info.header())
        with putting(self.output) as unfinished:
            unfinished.write_text(json.dumps(asdict(info)))


def _info(job: Job, file: str, parts: list[GroupedFile]) -> ShardInfo:
    id_bytes: Literal[2, 4] = 2 if job.id_dtype().itemsize == 2 else 4
    empty = ShardInfo(file, 0, 0, 0, id_bytes, 0, job.factors, 0 if job.linked else None)
    types = [dtype for dtype, _ in empty.columns()]
    counts = [sum(part.size(column) for part in parts) // dtype.itemsize for column, dtype in enumerate(types)]
    ids = 3 if job.linked else 2
    return replace(empty, pairs=counts[0], source_tokens=counts[ids], target_tokens=counts[ids + 1],
                   links=counts[-1] if job.linked else None)


def read_shard_info(job: Job, number: int) -> ShardInfo:
    """What `WriteShard` said of its shard."""
    return ShardInfo(**json.loads(job.shard_info(number).read_text()))
