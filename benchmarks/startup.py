"""Time and bytes until a training makes its first step, on prepared data of many shards: on a disk and in S3.

    python benchmarks/startup.py FOLDER [--code CHECKOUT ...] [--s3 's3://bucket/prefix?endpoint_url=...']

FOLDER keeps the prepared data from one call to the next. `--code` names checkouts to compare, each measured in
processes of its own; without it, this one is measured. A line of JSON for each place, checkout and kind:

* `input`: from opening the data to the first batch, with what a run asks before it: the sentence on batches and padding
  for its log, and the length of an epoch. No TensorFlow.
* `train`: the whole command `towernmt train` of a tiny model for one step, its last checkpoint included.

`checked_mb` are bytes whose checksum was taken (of each shard when it is opened first; in S3 it is taken twice, on
arrival and when it is opened); `fetched_mb` are bytes that came from S3 into the cache, which is empty at first.
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
settings = getattr(dataflow, "StreamBatchSettings", None) or dataflow.StreamSettings
begin = time.perf_counter()
batches = dataflow.make_batches(dataflow.open_training_data(sys.argv[1]), settings(), None, lambda sentence: None)
getattr(batches, "estimated_batches_per_epoch", batches.batches_per_epoch)()
next(batches.read())
"""
TRAIN = COUNTING + """
from towernmt.cli.main import main
if main(["train", "--data", sys.argv[1], "--logdir", sys.argv[2] + "/run", "--preset", "tiny", "--set",
         "train.steps=1", "train.checkpoint_steps=0", "train.batch_tokens=400", "model.hidden_size=32",
         "model.filter_size=32"]):
    raise SystemExit("training failed")
"""
REPORT = """
open(sys.argv[2] + "/found.json", "w").write(json.dumps({"seconds": time.perf_counter() - begin, "checked": checked}))
"""
PROGRAMS = {"input": INPUT, "train": TRAIN}


def main() -> None:
    """Measure each kind in each place with each checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--code", type=Path, nargs="+", default=[Path(__file__).parents[1]])
    parser.add_argument("--s3", help="where to copy the data to: a bucket that exists")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    options = parser.parse_args()
    data = options.folder / f"startup-{options.shards}"
    if not data.exists():
        prepare_data(options.folder, data, options.pairs, options.shards)
    places = {"disk": str(data)}
    if options.s3:
        upload(data, options.s3)
        places["s3"] = options.s3
    for place, where in places.items():
        for kind in options.kinds:
            for code in options.code:
                print(json.dumps({"place": place, "kind": kind, "code": str(code), "shards": options.shards,
                                  "pairs": options.pairs, **measure(PROGRAMS[kind], where, code)}), flush=True)


def prepare_data(folder: Path, output: Path, pairs: int, shards: int) -> None:
    """Synthetic text, prepared with words as its vocabulary."""
    import input_corpus as corpus

    from towernmt.dataflow.prepare.preparation import prepare
    from towernmt.dataflow.prepare.prepare_settings import PrepareSettings

    folder.mkdir(parents=True, exist_ok=True)
    corpus.write_text(corpus.make_pool(20_000, 15.0), pairs, folder, "startup")
    prepare(PrepareSettings(str(folder / "startup.src"), str(folder / "startup.tgt"), str(output), vocab_kind="word",
                            shard_pairs=-(-pairs // shards)))


def upload(data: Path, uri: str) -> None:
    """Copy the data to S3, unless they are there."""
    from towernmt.dataflow.prepare.upload_to_s3 import upload_prepared
    from towernmt.dataflow.storage.s3_folder import parse_s3_folder

    upload_prepared(data, parse_s3_folder(uri))


def measure(program: str, where: str, code: Path) -> dict[str, float]:
    """What a process needs that runs the program on the data with the code of a checkout."""
    with tempfile.TemporaryDirectory() as place:
        cache = Path(place) / "cache"
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program + REPORT, where, place], cwd=place, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=os.environ | {"PYTHONPATH": str(code.resolve()), "TOWERNMT_CACHE": str(cache)})
        whole = time.perf_counter() - begin
        found = Path(place) / "found.json"
        if not found.exists():
            raise SystemExit(f"{code}: the program failed:\n{done.stdout}")
        values = json.loads(found.read_text())
        fetched = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.exists() else 0
    return {"seconds": round(values["seconds"], 2), "process_seconds": round(whole, 2),
            "checked_mb": round(values["checked"] / 1e6, 2), "fetched_mb": round(fetched / 1e6, 2)}


if __name__ == "__main__":
    main()
