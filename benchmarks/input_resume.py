"""`input.py --resume`: time to the first batch at 1 % and at 99 % of a large corpus, for each kind of source.

A new reader starts from a position, as after a restart. `first_pair_s` is the time from opening the source to its first
pair. `first_batch_s` is the time that a run waits: a stream reads, encodes and plans its complete first window;
prepared shards are mapped, verified by checksum and planned, one shard at a time. The window is at most a hundredth of
the corpus, so that it is complete at 99 %. A position in the middle is read first and not reported, so that no reported
position pays for a cold start. The first pair is compared with the pair of the corpus at that position. Seeking in a
compressed file is not possible; it is measured to show the cost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import input_corpus as corpus

from towernmt.dataflow.batches.batch import Position
from towernmt.dataflow.batches.batch_settings import BatchSettings, StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.text.pair_filters import PairFilter

TABLE = "towernmt_benchmark_resume"
SHARES = (0.5, 0.01, 0.99)
KINDS = ("text", "compressed", "sqlite", "postgresql", "s3")


def measure_resume(folder: Path, pairs: int, postgresql: str | None, s3: str | None, kinds: Sequence[str]) -> None:
    """Print one line of JSON per kind and share."""
    if "prepared" in kinds:
        _prepared(folder, pairs)
    pool = corpus.make_pool(20_000, 5.0)
    vocabulary = folder / "resume-prepared"
    if not vocabulary.exists():
        corpus.write_text(pool, len(pool), folder, "pool")
        corpus.prepare_text(folder, "pool", vocabulary, 8000, len(pool))
    for kind in KINDS:
        if kind == "compressed" or kind in kinds:
            with _corpus_uri(kind, folder, pool, pairs, postgresql, s3) as uri:
                for share in SHARES if uri else ():
                    _stream(kind, str(uri), pool, pairs, share, vocabulary)


def _prepared(folder: Path, pairs: int) -> None:
    shards = folder / "resume-shards"
    if not shards.exists():
        corpus.make_shards(shards, pairs, 1_000_000, 12)
    settings = BatchSettings()
    counts = Batches(PreparedData(shards), settings)
    blocks = [counts._count(0, block) for block in counts._block_order(0)]
    for share in SHARES:
        batch, block = int(share * sum(blocks)), 0
        while batch >= blocks[block]:
            batch, block = batch - blocks[block], block + 1
        begin = time.perf_counter()
        next(Batches(PreparedData(shards), settings).read(Position(0, block, batch)))
        _report(kind="prepared", pairs=pairs, share=share, first_batch_s=time.perf_counter() - begin)


def _stream(kind: str, uri: str, pool: corpus.Pool, pairs: int, share: float, vocabulary: Path) -> None:
    before = int(share * pairs)
    cursor = _cursor(open_source(uri).begin(), pool, before)
    words = PreparedData(vocabulary).source_vocabulary
    begin = time.perf_counter()
    _, pair = next(open_source(uri).read(cursor))
    first_pair = time.perf_counter() - begin
    if tuple(pair) != pool[before % len(pool)]:
        raise RuntimeError(f"{uri}: pair {before} is {pair}, expected {pool[before % len(pool)]}.")
    begin = time.perf_counter()
    mixture = Mixture([Ingredient(open_source(uri))])
    settings = StreamBatchSettings(window=max(1, min(100_000, pairs // 100)))
    start = mixture.begin()
    start["draw"] = before
    start["sources"][0] |= {"cursor": cursor, "pairs": before, "round": before}
    batches = StreamBatches(mixture, words, words, settings, PairFilter(200, 9.0), report=lambda _: None)
    next(batches.read(Position(0, before // settings.window, 0, start)))
    _report(kind=kind, pairs=pairs, share=share, first_pair_s=first_pair, first_batch_s=time.perf_counter() - begin,
            window=settings.window)


def _report(share: float, **fields: Any) -> None:
    if share != SHARES[0]:
        print(corpus.describe(measure="resume", share=share, **fields), flush=True)


def _cursor(begin: Any, pool: corpus.Pool, before: int) -> Any:
    """Return the cursor after `before` pairs without reading them (the manual describes its form)."""
    if len(begin) == 2:     # a table, whose keys count from 1: [last key, largest key]
        return [before, begin[1]]
    lines = [[len(pair[side].encode()) + 1 for pair in pool] for side in range(2)]
    cycles, remaining_pairs = divmod(before, len(pool))
    return [*begin[:2], 0, before, *(cycles * sum(sizes) + sum(sizes[:remaining_pairs]) for sizes in lines)]


@contextlib.contextmanager
def _corpus_uri(kind: str, folder: Path, pool: corpus.Pool, pairs: int, postgresql: str | None, s3: str | None
                ) -> Iterator[str | None]:
    url = f"sqlite:///{folder / 'resume.db'}" if kind == "sqlite" else postgresql
    files = [folder / "resume.src", folder / "resume.tgt"]
    if kind in ("text", "s3") and not files[1].exists():
        corpus.write_text(pool, pairs, folder, "resume")
    if kind in ("sqlite", "postgresql") and url:
        with contextlib.closing(corpus.Table(url, TABLE, pool, pairs)) as table:
            yield table.uri
    elif kind == "s3" and s3:
        with contextlib.closing(corpus.Objects(s3)) as objects:
            objects.upload(files)
            yield objects.uri("resume.{src,tgt}")
    elif kind == "compressed":
        if not (folder / "packed.tgt.gz").exists():
            corpus.write_text(pool, pairs, folder, "packed", compress=True)
        yield str(folder / "packed.{src,tgt}.gz")
    else:
        yield str(folder / "resume.{src,tgt}") if kind == "text" else None
