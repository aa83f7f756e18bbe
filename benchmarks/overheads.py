"""Measure overheads outside the model against their targets: towers, update cycles, callbacks and start-up.

    python benchmarks/overheads.py                          # all, tiny, 1,024 tokens a batch, float32
    python benchmarks/overheads.py towers --rounds 40 --batch-tokens 4096 --precision bfloat16
    python benchmarks/overheads.py update_cycle callbacks
    python benchmarks/overheads.py startup depth

Prints one line of JSON per figure with its target and whether it is met (`met`); ratios come with the quartiles over
the rounds. The compared steps alternate inside one process on the same batches, so that drift of the machine cancels
out. docs/notes/benchmarks.md defines each figure.
"""

from __future__ import annotations

import argparse
import json
import os

# Before TensorFlow is imported: towers need different thread pools, but TensorFlow shares one pool per process.
os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"

from overheads_startup import depth_cost, startup_cost  # noqa: E402
from overheads_steps import callbacks_cost, towers_cost, update_cycle_cost  # noqa: E402
from tensorpack.utils import logger  # noqa: E402
from train_work import VOCABULARY, draw, load  # noqa: E402

from towernmt.core.standard_streams import without_noise  # noqa: E402
from towernmt.core.tf_compat import tf  # noqa: E402
from towernmt.models.model_settings import PRECISIONS  # noqa: E402

FIGURES = ("towers", "update_cycle", "callbacks", "startup", "depth")


def main(arguments: list[str] | None = None) -> None:
    """Measure the requested figures."""
    options = _parser().parse_args(arguments)
    logger._logger.setLevel("WARNING")
    tf.config.experimental.enable_op_determinism()
    batches = load(options.batches) if options.batches else draw(VOCABULARY[options.config], options.batch_tokens)
    work = (options.config, batches, options.precision)
    measures = {
        "towers": lambda: towers_cost(*work, options.towers, options.rounds),
        "update_cycle": lambda: update_cycle_cost(*work, options.update_cycle, max(2, options.rounds // 2)),
        "callbacks": lambda: callbacks_cost(*work, options.pairs),
        "startup": lambda: startup_cost(options.starts, options.batch_tokens),
        "depth": lambda: depth_cost(options.depths, options.starts, options.precision),
    }
    with without_noise():
        for name in options.figures or FIGURES:
            for figure in measures[name]():
                print(json.dumps({**figure, "config": options.config, "batch_tokens": options.batch_tokens,
                                  "dtype": options.precision}), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"any of {', '.join(FIGURES)}; default: all")
    parser.add_argument("--config", choices=sorted(VOCABULARY), default="tiny", help="for the first three")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--batches", metavar="FILE", help="take the batches from this .npz file")
    parser.add_argument("--towers", nargs="+", type=int, default=[2, 4], help="numbers of towers to compare with one")
    parser.add_argument("--update-cycle", type=int, default=4, metavar="K")
    parser.add_argument("--rounds", type=int, default=40, help="rounds for towers; update cycles take half as many")
    parser.add_argument("--pairs", type=int, default=150, help="callbacks: pairs of a complete step and a bare step")
    parser.add_argument("--starts", type=int, default=3, help="starts of the command, and rounds for the depths")
    parser.add_argument("--depths", nargs="+", type=int, default=[1, 2, 4, 6, 8, 10, 12])
    return parser


if __name__ == "__main__":
    main()
