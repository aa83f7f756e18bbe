"""Bytes and time of summing gradients over workers on this machine, by buckets.

    python benchmarks/all_reduce.py --workers 2 3 --hidden 256 --buckets 0.25 1 4 16 --wire float32 bfloat16
    python benchmarks/all_reduce.py --workers 2 --hidden 512 --layers 6 --vocabulary 32000
    python benchmarks/all_reduce.py --workers 2 3 --layers 0 --hidden 512 --vocabulary 32000 --rows 0 1000 5000 20000

The gradients have the shapes of a Transformer's. All workers run here, over the loopback, and share the processors: so
compare their processor seconds rather than the wall time. `scaling_on_paper.py` estimates the effect of a real network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def shapes_of_transformer(hidden: int, layers: int, vocabulary: int) -> list[list[int]]:
    """Return the shapes of a Transformer's variables: `layers` encoder and decoder layers and one shared embedding."""
    attention, inner = [[hidden, 3 * hidden], [3 * hidden], [hidden, hidden], [hidden]], 4 * hidden
    feed_forward = [[hidden, inner], [inner], [inner, hidden], [hidden]]
    norm = [[hidden], [hidden]]
    encoder = [*attention, *norm, *feed_forward, *norm]
    decoder = [*attention, *norm, *attention, *norm, *feed_forward, *norm]
    return [[vocabulary, hidden], *encoder * layers, *decoder * layers, [vocabulary]]


def sent_bytes(total: int, workers: int) -> float:
    """Return the bytes that each worker sends (and receives) in a ring all-reduce of `total` bytes."""
    return 2 * total * (workers - 1) / workers


def measure(options: argparse.Namespace) -> None:
    """Sum gradients as one of the workers. The chief prints one line per wire format and bucket size."""
    from towernmt.cluster.all_reduce import AllReduce
    from towernmt.cluster.joining import joined_world
    from towernmt.core.session import SessionCreator
    from towernmt.core.tf_compat import tf, tf1

    shapes = shapes_of_transformer(options.hidden, options.layers, options.vocabulary)
    with joined_world(timeout=300.0) as world:
        for wire, megabytes, rows in itertools.product(options.wire, options.buckets, options.rows):
            with tf.Graph().as_default():
                variables = [tf1.get_variable(f"v{i}", shape, use_resource=True) for i, shape in enumerate(shapes)]
                gradients = [(v.read_value(), v) for v in variables]
                if rows:
                    gradients[0] = _some_rows(variables[0], rows, world.process), variables[0]
                sums = AllReduce(wire, bucket_bytes=int(megabytes * 2 ** 20)).reduce([gradients], world)
                done = tf.group(*(tf.convert_to_tensor(gradient) for gradient, _ in sums))
                with SessionCreator().create_session() as session:
                    seconds, processor = _timed(lambda: session.run(done), options.repeats)     # noqa: B023
            if world.is_chief:
                print(json.dumps({"workers": world.processes, "wire": wire, "bucket_mib": megabytes, "rows": rows,
                                  "seconds": round(seconds, 4), "processor_seconds": round(processor, 4)}), flush=True)


def _some_rows(table: Any, count: int, seed: int) -> Any:
    """Return a sparse gradient of `count` distinct random rows of `table`."""
    from towernmt.core.tf_compat import tf

    rows = random.Random(seed).sample(range(table.shape[0]), count)
    return tf.IndexedSlices(tf.gather(table.read_value(), rows), tf.constant(rows, tf.int64), tf.shape(table))


def _timed(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the median wall-clock seconds and the mean processor seconds of one run."""
    for _ in range(3):
        run()
    seconds, began = [], time.process_time()
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), (time.process_time() - began) / repeats


def start_workers(count: int, arguments: Sequence[str]) -> None:
    """Run this program as `count` workers and wait for them."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
    for listener in sockets:
        listener.close()
    processes = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(subprocess.Popen([sys.executable, __file__, "--as-worker", *arguments],
                                          env={**os.environ, "TF_CONFIG": json.dumps(config)}))
    if any([process.wait() for process in processes]):
        sys.exit("A worker failed.")


def main() -> None:
    """Start the workers of each measurement, or run as one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3, help="number of encoder layers, and of decoder layers")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--buckets", type=float, nargs="+", default=[0.25, 1, 4, 16], help="largest bucket size, MiB")
    parser.add_argument("--rows", type=int, nargs="+", default=[0],
                        help="embedding rows with a gradient in each worker (a sparse gradient); 0: all")
    parser.add_argument("--wire", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_worker:
        measure(options)
        return
    numbers = sum(math.prod(s) for s in shapes_of_transformer(options.hidden, options.layers, options.vocabulary))
    print(f"{numbers:,} parameters, {4 * numbers / 1e6:.1f} MB of gradients as float32")
    for count in options.workers:
        megabytes = sent_bytes(4 * numbers, count) / 1e6
        print(f"{count} workers: each sends {megabytes:.1f} MB a step as float32", flush=True)
        start_workers(count, sys.argv[1:])


if __name__ == "__main__":
    main()
