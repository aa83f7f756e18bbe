"""Measure the parts of a training step on CPU: forward pass, gradients, Muon's directions, updates of the variables.

    taskset -c 0 python benchmarks/step_parts.py --preset mini --optimizer muon --precision bfloat16
    python benchmarks/step_parts.py --preset mini --optimizer adam --towers 2

TensorFlow traces every operation of the measured steps, and each operation counts for the part that its name shows.
With several processors, the times of a part are the sum over its threads. Prints one JSON line: milliseconds of each
part in a step, and `step_ms`, the wall-clock time of a traced step (means). The work is that of `train.py` on
random batches.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from typing import Any

from tensorpack.callbacks import Callback
from train_run import Plan, run
from train_work import VOCABULARY, FixedBatches, draw, make_model

from towernmt.core.machine import processors
from towernmt.core.standard_streams import without_noise
from towernmt.core.tf_compat import tf1
from towernmt.models.model_settings import PRECISIONS

PARTS = {"directions": ("Muon/cond/", "Muon/MatMul"), "update": ("Muon", "Adam", "train_op"),
         "gradients": ("gradients", "GlobalNorm"), "reduction": ("sum_over_towers",)}
"""Beginnings of the names of a part's operations, without the scope of a tower. The first part that fits counts."""
WARM = 4
"""Steps before the first measured one: TensorFlow optimises the graph, and allocates its memory."""


def main(arguments: list[str] | None = None) -> None:
    """Measure one training and print its record."""
    options = parser().parse_args(arguments)
    # With more threads than processors, the time of an operation would include that of others on its processor.
    os.environ["TF_NUM_INTEROP_THREADS"] = str(processors())
    changes = {"softmax_sample": options.softmax_sample} if options.softmax_sample else {}
    trace = Trace()
    with without_noise():
        model = make_model("transformer", "tiny", options.preset, options.optimizer, **changes)
        run(model, FixedBatches(draw(VOCABULARY["tiny"], options.batch_tokens, pairs=4000)),
            Plan(options.precision, options.towers, warm=WARM, steps=options.steps), [trace])
    print(json.dumps({**vars(options), "threads": processors(), **trace.record()}), flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="mini", help="preset of the Transformer, with a joint vocabulary of 8,000")
    parser.add_argument("--optimizer", default="muon", help="name of the optimizer")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--towers", type=int, default=1, help="towers on the CPU")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--softmax-sample", type=float, default=0.0, metavar="SHARE",
                        help="share of the vocabulary in the softmax; 0 means all of it")
    parser.add_argument("--steps", type=int, default=20, help="number of traced steps; even, as Muon alternates")
    return parser


class Trace(Callback):
    """Callback that traces each step after `WARM`, and sums the times of the operations by part."""

    def __init__(self) -> None:
        self._micros: Counter[str] = Counter()
        self._steps: list[float] = []

    def _before_run(self, _: Any) -> Any:
        self._start = time.perf_counter()
        if self.global_step < WARM:
            return None
        return tf1.train.SessionRunArgs([], options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE))

    def _after_run(self, _: Any, values: Any) -> None:
        if values.run_metadata.step_stats.dev_stats:
            self._steps.append(time.perf_counter() - self._start)
            for device in values.run_metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    self._micros[part(node.node_name)] += node.all_end_rel_micros

    def record(self) -> dict[str, Any]:
        """Return the milliseconds of the parts and of a whole step."""
        steps = len(self._steps)
        parts = {f"{name}_ms": round(micros / steps / 1000, 1) for name, micros in sorted(self._micros.items())}
        return {**parts, "step_ms": round(sum(self._steps) / steps * 1000, 1)}


def part(operation: str) -> str:
    """Return the part of a step to which an operation belongs, by its name."""
    scope, _, rest = operation.partition("/")
    name = rest if scope.startswith("tower") else operation
    return next((part for part, starts in PARTS.items() if name.startswith(starts)), "forward")


if __name__ == "__main__":
    main()
