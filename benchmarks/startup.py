"""Measure the time and the bytes read until the first training step, on prepared data of many shards on disk and in S3.

    python benchmarks/startup.py FOLDER [--code CHECKOUT ...] [--s3 's3://bucket/prefix?endpoint_url=...']

FOLDER keeps the prepared data between calls. `--code` names the checkouts to compare, each in separate processes; the
default is this checkout. Prints one line of JSON per location, checkout and kind:

* `input`: from opening the data to the first batch, including the summary of batches and padding for the log and the
  length of an epoch; without TensorFlow.
* `train`: the complete command `towernmt train` of a tiny model for one step, including its last checkpoint.

`checked_mb` counts bytes with a computed checksum (when a shard is first opened; a shard from S3 also on arrival).
`fetched_mb` counts bytes fetched from S3 into the cache, which is empty at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNTING = """
import json, os, sys, time, zlib
checked, crc32 = 0, zlib.crc32
def counting(data, *value):
    global checked
    checked += memoryview(data).nbytes
    return crc32(data, *value)
zlib.crc32 = counting
begin = time.perf_counter()
"""
INPUT = COUNTING + """
import towernmt.dataflow as dataflow
begin = time.perf_counter()
batches = dataflow.make_batches(dataflow.open_training_data(sys.argv[1]), dataflow.StreamBatchSettings(), None, print)
batches.estimated_batches_per_epoch()
next(batches.read())
"""
TRAIN = COUNTING + """
from towernmt.cli.main import main
if main(["train", "--data", sys.argv[1], "--logdir", sys.argv[2] + "/run", "--preset", "tiny", "--set",
         "train.steps=1", "checkpoint.steps=0", "data.batch_tokens=400", "model.hidden_size=32",
         "model.filter_size=32"]):
    raise SystemExit("training failed")
"""
REPORT = """
open(sys.argv[2] + "/found.json", "w").write(json.dumps({"seconds": time.perf_counter() - begin, "checked": checked}))
"""
PROGRAMS = {"input": INPUT, "train": TRAIN}


def main() -> None:
    """Measure each kind with each checkout, on disk and in S3."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--code", type=Path, nargs="+", default=[Path(__file__).parents[1]])
    parser.add_argument("--s3", help="folder in an existing bucket to copy the data to")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    options = parser.parse_args()
    data = options.folder / f"startup-{options.shards}"
    if not data.exists():
        prepare_data(options.folder, data, options.pairs, options.shards)
    locations = {"disk": str(data)}
    if options.s3:
        upload(data, options.s3)
        locations["s3"] = options.s3
    for storage, location in locations.items():
        for kind in options.kinds:
            for code in options.code:
                print(json.dumps({"storage": storage, "kind": kind, "code": str(code), "shards": options.shards,
                                  "pairs": options.pairs, **measure(PROGRAMS[kind], location, code)}), flush=True)


def prepare_data(folder: Path, output: Path, pairs: int, shards: int) -> None:
    """Write synthetic text and prepare it with a word vocabulary."""
    import input_corpus as corpus

    from towernmt.dataflow.preparation.preparation import prepare
    from towernmt.dataflow.preparation.prepare_settings import PrepareSettings

    folder.mkdir(parents=True, exist_ok=True)
    corpus.write_text(corpus.make_pool(20_000, 15.0), pairs, folder, "startup")
    prepare(PrepareSettings(str(folder / "startup.src"), str(folder / "startup.tgt"), str(output), vocab_kind="word",
                            shard_pairs=-(-pairs // shards)))


def upload(data: Path, uri: str) -> None:
    """Copy the data to S3 unless it exists there."""
    from towernmt.dataflow.preparation.s3_upload import upload_prepared
    from towernmt.dataflow.storage.s3_storage import parse_s3_folder

    upload_prepared(data, parse_s3_folder(uri))


def measure(program: str, location: str, code: Path) -> dict[str, float]:
    """Run a program on the data with the code of a checkout and return its seconds and megabytes."""
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory) / "cache"
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program + REPORT, location, directory], cwd=directory, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=os.environ | {"PYTHONPATH": str(code.resolve()), "TOWERNMT_CACHE": str(cache)})
        process_seconds = time.perf_counter() - begin
        result_path = Path(directory) / "found.json"
        if not result_path.exists():
            raise SystemExit(f"{code}: the program failed:\n{done.stdout}")
        values = json.loads(result_path.read_text())
        fetched = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.exists() else 0
    return {"seconds": round(values["seconds"], 2), "process_seconds": round(process_seconds, 2),
            "checked_mb": round(values["checked"] / 1e6, 2), "fetched_mb": round(fetched / 1e6, 2)}


if __name__ == "__main__":
    main()
