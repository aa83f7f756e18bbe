"""`input.py --memory`: resident memory while reading a large corpus, prepared and as a stream.

`anonymous_mb` is memory that the process allocated. `resident_mb` also counts the mapped pages of shards, which the
system reclaims when memory is short. `peak_mb` is the largest resident size. Each kind is measured in a separate
process.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import input_corpus as corpus
from input_loop import dequeuing

from towernmt.dataflow.batches.batch_settings import BatchSettings, StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.training_data import StreamedCorpus
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.sources.corpora import Corpora, SourceEntry

POINTS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
TOKENS = 25_000


def measure_memory(folder: Path, pairs: int, kinds: Sequence[str], seconds: float) -> None:
    """Print one line of JSON per point; a pass that takes longer than `seconds` ends early."""
    spawned = multiprocessing.get_context("spawn")
    for kind, make in (("prepared", _make_shards), ("text", _make_text)):
        if kind in kinds:
            for work in (make, _read):      # a separate process, so that making the data does not count
                process = spawned.Process(target=work, args=(kind, folder, pairs, seconds))
                process.start()
                process.join()
                if process.exitcode:
                    raise RuntimeError(f"{kind}: {work.__name__} ended with {process.exitcode}.")


def _make_shards(kind: str, folder: Path, pairs: int, seconds: float) -> None:
    if not (folder / "memory-shards").exists():
        corpus.make_shards(folder / "memory-shards", pairs, 1_000_000, 12)


def _make_text(kind: str, folder: Path, pairs: int, seconds: float) -> None:
    if not (folder / "memory.tgt").exists():
        pool = corpus.make_pool(20_000, 5.0)
        corpus.write_text(pool, len(pool), folder, "pool")
        corpus.prepare_text(folder, "pool", folder / "memory-vocabulary", 8000, len(pool))
        corpus.write_text(pool, pairs, folder, "memory")


def _read(kind: str, folder: Path, pairs: int, seconds: float) -> None:
    with dequeuing(_batches(kind, folder), 2) as take:
        done, points, begin = 0, list(POINTS), time.perf_counter()
        while (sizes := take()) is not None and time.perf_counter() - begin < seconds:
            done += sizes[0]
            while points and done >= points[0] * pairs:
                _report(kind, done, time.perf_counter() - begin)
                points.pop(0)
        if points:
            _report(kind, done, time.perf_counter() - begin)


def _batches(kind: str, folder: Path) -> Any:
    if kind == "prepared":
        return Batches(PreparedData(folder / "memory-shards"), BatchSettings(batch_tokens=TOKENS), epochs=1)
    data = StreamedCorpus(Corpora("the benchmark", [SourceEntry(str(folder / "memory.{src,tgt}"))]),
                          folder / "memory-vocabulary")
    return data.batches(StreamBatchSettings(batch_tokens=TOKENS), 1, lambda _: None)


def _report(kind: str, pairs: int, seconds: float) -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    megabytes = {name: int(status[field].split()[0]) // 1024
                 for name, field in (("resident_mb", "VmRSS"), ("anonymous_mb", "RssAnon"))}
    print(corpus.describe(measure="memory", kind=kind, pairs=pairs, seconds=seconds, **megabytes,
                          peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024), flush=True)
