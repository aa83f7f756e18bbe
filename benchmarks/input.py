"""Measure speed, resumption and memory of the input pipeline. Prints one JSON line per measurement.

    python benchmarks/input.py                                  # speed: prepared shards, text, SQLite, tf.data
    python benchmarks/input.py --torch-python venv/bin/python   # with PyTorch's DataLoader, from a Python that has it
    python benchmarks/input.py --postgresql 'postgresql+psycopg://me@host/db' --s3 's3://bucket/bench?endpoint_url=...'
    python benchmarks/input.py --resume                         # time to the first batch at 1 % and 99 %
    python benchmarks/input.py --memory                         # resident memory while reading 20 million pairs

`input_corpus.py` generates the corpora in a temporary folder, or in --folder, which is kept and reused. PostgreSQL and
S3 are measured if you name an existing database and bucket (credentials come from the environment); the program removes
what it creates there. Prepared data in S3 is read through the cache ($TOWERNMT_CACHE).

Speed is measured by a loop that dequeues in a plain session from the queue of `GeneralQueueInput` (feed_dict,
`--feeders` threads). Prepared shards are read repeatedly for --seconds; every other source is read once, --stream-pairs
pairs, including the time to open it. `input_peers.py` does the same work with `tf.data` and DataLoader.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import input_corpus as corpus
from input_loop import dequeuing, for_seconds, whole_pass
from input_memory import measure_memory
from input_resume import measure_resume

from towernmt.core.standard_streams import without_noise
from towernmt.dataflow.batches.batch_settings import BatchSettings, StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.training_data import StreamedCorpus
from towernmt.dataflow.preparation.prepared_data import open_prepared
from towernmt.dataflow.sources.corpora import Corpora, SourceEntry

KINDS = ("prepared", "text", "sqlite", "postgresql", "s3", "s3-prepared", "tf.data", "torch")
TABLE = "towernmt_benchmark"


def main() -> None:
    """Run the measurements that the options select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measurements = parser.add_mutually_exclusive_group()
    measurements.add_argument("--resume", action="store_true", help="measure the time to the first batch instead")
    measurements.add_argument("--memory", action="store_true", help="measure memory instead")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--feeders", nargs="+", type=int, default=[1, 2, 4], help="feeders, and workers of peers")
    parser.add_argument("--batch-tokens", nargs="+", type=int, default=[4096, 25000], help="target tokens per batch")
    parser.add_argument("--pairs", type=int, help="pairs of the corpus (speed 400,000; resume 5, memory 20 million)")
    parser.add_argument("--stream-pairs", type=int, default=200_000, help="speed: pairs of other sources than shards")
    parser.add_argument("--seconds", type=float, help="shards: seconds to measure (default 3); memory: limit of a pass")
    parser.add_argument("--folder", type=Path, help="folder to keep the corpora in")
    parser.add_argument("--postgresql", metavar="URI", help="SQLAlchemy URL of a database")
    parser.add_argument("--s3", metavar="URI", help="s3://bucket/prefix?endpoint_url=...")
    parser.add_argument("--torch-python", metavar="FILE", help="a Python with torch, numpy and sentencepiece")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_noise())
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towernmt-input-")))
        folder.mkdir(parents=True, exist_ok=True)
        if options.resume:
            measure_resume(folder, options.pairs or 5_000_000, options.postgresql, options.s3, options.kinds)
        elif options.memory:
            measure_memory(folder, options.pairs or 20_000_000, options.kinds, options.seconds or float("inf"))
        else:
            measure_speed(options, folder)


def measure_speed(options: argparse.Namespace, folder: Path) -> None:
    """Measure the speed of each kind of source and of the peers."""
    pairs = options.pairs or 400_000
    prepared = folder / "prepared"
    pool: corpus.Pool = []
    if {"sqlite", "postgresql"} & set(options.kinds) or not (prepared / "manifest.json").exists():
        pool = corpus.make_pool(min(100_000, pairs), 14.0)
    if not (prepared / "manifest.json").exists():
        corpus.write_text(pool, options.stream_pairs, folder, "stream")
        corpus.write_text(pool, pairs, folder, "text")
        corpus.prepare_text(folder, "text", prepared, 8000, 200_000)
    for kind in options.kinds:
        with _corpus_uri(kind, options, folder, pool) as uri:
            if uri is None:
                continue
            for tokens in options.batch_tokens:
                if kind in ("tf.data", "torch"):
                    _run_peers(kind, options, folder, tokens)
                    continue
                for feeders in options.feeders:
                    _measure(kind, uri, prepared, tokens, feeders, options.seconds or 3.0)


@contextlib.contextmanager
def _corpus_uri(kind: str, options: argparse.Namespace, folder: Path, pool: corpus.Pool) -> Iterator[str | None]:
    """Put the corpus into a source of this kind and yield its URI, or None if the kind is not available."""
    url = f"sqlite:///{folder / 'speed.db'}" if kind == "sqlite" else options.postgresql
    if kind in ("sqlite", "postgresql") and url:
        with contextlib.closing(corpus.Table(url, TABLE, pool, options.stream_pairs)) as table:
            yield table.uri
    elif kind.startswith("s3") and options.s3:
        with contextlib.closing(corpus.Objects(options.s3)) as objects:
            if kind == "s3":
                objects.upload([folder / "stream.src", folder / "stream.tgt"])
            else:
                objects.upload_prepared(folder / "prepared", "prepared")
            yield objects.uri("stream.{src,tgt}" if kind == "s3" else "prepared")
    elif kind in ("prepared", "text", "tf.data"):
        yield str(folder / "prepared" if kind == "prepared" else folder / "stream.{src,tgt}")
    else:
        yield "torch" if kind == "torch" and options.torch_python else None


def _measure(kind: str, uri: str, prepared: Path, tokens: int, feeders: int, seconds: float) -> None:
    if kind.endswith("prepared"):
        batches = Batches(open_prepared(uri), BatchSettings(batch_tokens=tokens))
        with dequeuing(batches, feeders) as take:
            passed = for_seconds(take, 1.0, seconds)
    else:
        data = StreamedCorpus(Corpora("the benchmark", [SourceEntry(uri)]), prepared)
        with dequeuing(data.batches(StreamBatchSettings(batch_tokens=tokens), 1, lambda _: None), feeders) as take:
            passed = whole_pass(take)
    print(corpus.describe(reader="towernmt", kind=kind, batch_tokens=tokens, feeders=feeders, **passed.figures()),
          flush=True)


def _run_peers(kind: str, options: argparse.Namespace, folder: Path, tokens: int) -> None:
    python = options.torch_python if kind == "torch" else sys.executable
    command = [python, str(Path(__file__).with_name("input_peers.py")), kind, "--folder", str(folder),
               "--batch-tokens", str(tokens), "--seconds", str(options.seconds or 3.0),
               "--workers", *map(str, options.feeders)]
    subprocess.run(command, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})


if __name__ == "__main__":
    main()
