"""Measure the training speed of complete steps: queue, towers, update and callbacks. Prints one JSON line per run.

    python benchmarks/train.py --config tiny --batch-tokens 1024 --precision float32
    python benchmarks/train.py --config base --batch-tokens 4096 --precision bfloat16 --batches batches_4096.npz
    python benchmarks/train.py --model rnnsearch --towers 2
    python benchmarks/train.py --gpu 0

The work is a Transformer (tiny: hidden 256, filter 1024, 4 heads, 3+3 layers, joint vocabulary of 8,000;
base: 512, 2048, 8, 6+6, 32,000) with tied embeddings, dropout 0.1, label smoothing 0.1 and Adam, on batches of
sentences x longest side <= --batch-tokens. Another --model uses its preset `tiny` or the sizes of its paper
(`train_work.py`) with the same vocabularies. `--batches FILE.npz` reads the batches from a file: int arrays `s0`, `t0`,
`s1`, ... (ids end with EOS = 2, padded with 0) and their number `n`. `--data DIR` reads prepared data with a vocabulary
of that size. The default is random batches. docs/notes/benchmarks.md explains the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from train_run import Plan, measure
from train_work import PRESETS, VOCABULARY, FixedBatches, draw, load, make_model, twice_each

from towernmt.core.standard_streams import without_noise
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.input_source.queue_input import ReadableBatches
from towernmt.models.model_settings import PRECISIONS

STEPS = {("tiny", 1024): (6, 24, 8), ("tiny", 4096): (3, 9, 4), ("base", 1024): (2, 6, 2), ("base", 4096): (1, 3, 2)}
"""Warm-up steps, measured steps, and pairs of a complete step and a bare update."""


def main(arguments: list[str] | None = None) -> None:
    """Measure one run and print its record."""
    options = parser().parse_args(arguments)
    plan = plan_of(options)
    with without_noise():
        model = make_model(options.model, options.config, options.preset, options.optimizer)
        figures = measure(model, batches_of(options, plan), plan)
    print(record(options, figures), flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(PRESETS), default="transformer")
    parser.add_argument("--config", choices=sorted(VOCABULARY), default="tiny")
    parser.add_argument("--preset", help="preset of the model; the vocabulary is that of --config")
    parser.add_argument("--optimizer", default="adam", help="name of the optimizer")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    batch_source = parser.add_mutually_exclusive_group()
    batch_source.add_argument("--batches", metavar="FILE", help="take the batches from this .npz file")
    batch_source.add_argument("--data", metavar="DIR", help="take the batches from prepared data (no pairs)")
    parser.add_argument("--steps", type=int, help="number of measured steps")
    parser.add_argument("--warm", type=int, help="number of warm-up steps")
    parser.add_argument("--pairs", type=int, help="steps that then alternate with bare updates (even; 0 for none)")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--towers", type=int, default=1, help="towers on the CPU")
    devices.add_argument("--gpu", type=int, metavar="N", help="one tower on this GPU")
    parser.add_argument("--update-cycle", type=int, default=1, metavar="K", help="batches per update")
    parser.add_argument("--nondeterministic", action="store_true", help="allow kernels that add in any order")
    parser.add_argument("--plain-norm", action="store_true", help="on a GPU, normalise layers without cuDNN")
    parser.add_argument("--no-tf32", action="store_true", help="on a GPU, multiply float32 without rounding to TF32")
    return parser


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan of the options; missing numbers depend on the size of the work."""
    warm, steps, pairs = STEPS.get((options.config, options.batch_tokens), (5, 25, 4))
    pairs = pairs if options.pairs is None else options.pairs
    return Plan(precision=options.precision, towers=options.towers, gpu=options.gpu, update_cycle=options.update_cycle,
                warm=options.warm or warm, steps=options.steps or steps,
                pairs=0 if options.data else pairs + pairs % 2, deterministic=not options.nondeterministic,
                fused_norm=not options.plain_norm, tf32=not options.no_tf32)


def batches_of(options: argparse.Namespace, plan: Plan) -> ReadableBatches:
    """Return the batches in the order of the run; each batch for pairs occurs twice."""
    if options.data:
        return Batches(PreparedData(options.data), BatchSettings(options.batch_tokens, "longest"))
    batches = load(options.batches) if options.batches else draw(VOCABULARY[options.config], options.batch_tokens)
    once = (plan.warm + plan.steps + bool(plan.pairs)) * plan.update_cycle      # one for the first bare update
    return FixedBatches(batches, [*range(once), *twice_each(once, plan.pairs, plan.update_cycle)])


def record(options: argparse.Namespace, figures: dict[str, Any]) -> str:
    """Return the JSON line of a run."""
    line = {"peer": "towernmt", "mode": "train", "model": options.model, "config": options.config,
            "preset": options.preset, "optimizer": options.optimizer,
            "batch_tokens": options.batch_tokens, "dtype": options.precision,
            "towers": options.towers, "gpu": options.gpu, "update_cycle": options.update_cycle, **figures,
            "load1": os.getloadavg()[0], "when": time.strftime("%H:%M:%S")}
    return json.dumps({key: float(f"{value:.6g}") if isinstance(value, float) else value
                       for key, value in line.items()})


if __name__ == "__main__":
    main()
