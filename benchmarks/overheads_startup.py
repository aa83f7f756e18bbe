"""Measure start-up from the command `towernmt train` to the first step, by phase, and graph building by depth."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from alternation import in_turn
from input_corpus import make_shards
from train_run import Plan
from train_work import FixedBatches, draw, make_model

from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.models.kernels import set_precision
from towernmt.models.layers.randomness import set_seed

TARGET_SECONDS = 15.0
PHASES = [
    ("imports", r"Building training tower"),
    ("towers", r"Setup callbacks graph"),
    ("callbacks_graph", r"Creating the session"),
    ("session", r"Graph Finalized"),
    ("first_checkpoint", r"Start Epoch"),
    ("first_step", r"step 1, "),
]
"""Phases in order, each with the log line that ends it."""


def startup_cost(rounds: int, batch_tokens: int = 1024, preset: str = "tiny") -> list[dict[str, Any]]:
    """Measure the seconds from process start to the log line of the first step, by phase, in the median round.

    The command itself is timed by the arrival of its log lines; only `log.steps=1` is added to it.
    """
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        make_shards(data, 20_000, 10_000, 40)
        durations = sorted((_start(data, Path(directory) / f"run-{i}", batch_tokens, preset) for i in range(rounds)),
                           key=lambda phases: sum(phases.values()))
    middle = durations[(rounds - 1) // 2]
    return [{"figure": "startup", "target_s": TARGET_SECONDS, "seconds": round(sum(middle.values()), 2),
             "met": sum(middle.values()) <= TARGET_SECONDS, "rounds": rounds,
             "fastest_s": round(sum(durations[0].values()), 2), "slowest_s": round(sum(durations[-1].values()), 2),
             "phases": {name: round(seconds, 2) for name, seconds in middle.items()}}]


def _start(data: Path, logdir: Path, batch_tokens: int, preset: str) -> dict[str, float]:
    """Start the command once and return the seconds of each phase."""
    command = [sys.executable, "-m", "towernmt.cli.main", "train", "--data", str(data), "--logdir", str(logdir),
               "--preset", preset, "--verbose", "--set", "train.steps=1", "log.steps=1",
               f"data.batch_tokens={batch_tokens}"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})
    lines = [(time.perf_counter() - begin, line) for line in process.stdout or ()]
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(line for _, line in lines)[-2000:]}")
    return phases_of(lines)


def phases_of(lines: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return the seconds of each phase from (seconds, log line) pairs.

    Raises:
        SystemExit: the line that ends a phase is missing.
    """
    lines = list(lines)
    ends: list[float] = []
    for name, pattern in PHASES:
        after = ends[-1] if ends else 0.0
        matches = [arrival for arrival, line in lines if arrival >= after and re.search(pattern, line)]
        if not matches:
            raise SystemExit(f"No line of the log ended the phase '{name}' ({pattern}).")
        ends.append(matches[0])
    return {name: end - begin for (name, _), begin, end in zip(PHASES, [0.0, *ends], ends, strict=False)}


def depth_cost(depths: Sequence[int], rounds: int, precision: str = "float32") -> list[dict[str, Any]]:
    """Measure processor seconds and operations of building the `tiny` training graph with N + N layers (fastest round).

    `linearity` is the growth per layer in the deeper half divided by that in the shallower half: 1 means linear time.
    `layer_s` is the mean time that one encoder layer and one decoder layer add.
    """
    seconds: dict[int, float] = {}
    operations: dict[int, int] = {}
    batches = FixedBatches(draw(8000, 256, pairs=50))
    for number in range(rounds):
        for name in in_turn(list(map(str, depths)), number):
            build_seconds, count = _build(int(name), batches, precision)
            seconds[int(name)] = min(build_seconds, seconds.get(int(name), build_seconds))
            operations[int(name)] = count
    return [{"figure": "graph_building", "rounds": rounds, **growth(seconds),
             "seconds": {str(depth): round(seconds[depth], 3) for depth in depths},
             "operations": {str(depth): operations[depth] for depth in depths}}]


def _build(depth: int, batches: FixedBatches, precision: str) -> tuple[float, int]:
    """Build the training graph without callbacks and return its processor seconds and its number of operations."""
    model = make_model("transformer", "tiny", encoder_layers=depth, decoder_layers=depth)
    gc.collect()
    with tf.Graph().as_default():
        set_seed(1)
        set_precision(precision)
        begin = time.thread_time()      # the graph is built by one thread; other processes must not count
        Plan().trainer().setup_graph(model.get_input_signature(), GeneralQueueInput(batches), model.build_graph,
                                     model.get_optimizer)
        return time.thread_time() - begin, len(tf1.get_default_graph().get_operations())


def growth(seconds: dict[int, float]) -> dict[str, float]:
    """Return the seconds per layer, and the growth in the deeper half relative to the shallower half."""
    depths = sorted(seconds)
    first, middle, last = depths[0], depths[len(depths) // 2], depths[-1]

    def slope(begin: int, end: int) -> float:
        return (seconds[end] - seconds[begin]) / (end - begin)

    return {"layer_s": round(slope(first, last), 4),
            "linearity": round(slope(middle, last) / slope(first, middle), 3)}
