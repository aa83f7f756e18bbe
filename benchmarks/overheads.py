"""What is not the model: towers, update cycles, callbacks and start-up, each against its target.

    python benchmarks/overheads.py                          # all, tiny, 1,024 tokens a batch, float32
    python benchmarks/overheads.py towers --rounds 40 --batch-tokens 4096 --precision bfloat16
    python benchmarks/overheads.py update_cycle callbacks
    python benchmarks/overheads.py startup depth

Prints one line of JSON a figure, with its target and whether it is met (`met`); a ratio comes with the quartiles of
the rounds. Steps of the things that are compared run in turn inside one process, on the same batches, so that a
machine that drifts does not decide. docs/notes/benchmarks.md says what each figure is.
"""

from __future__ import annotations

import argparse
import json
import os

# Before TensorFlow is there: towers differ in the threads of an operation, which otherwise are one pool a process.
os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"

from overheads_startup import depth_cost, startup_cost  # noqa: E402
from overheads_steps import callbacks_cost, towers_cost, update_cycle_cost  # noqa: E402
from tensorpack.utils import logger  # noqa: E402
from train_work import VOCABULARY, draw, load  # noqa: E402

from towernmt.core.terminal.stderr_noise import without_noise  # noqa: E402
from towernmt.core.tf_compat import tf  # noqa: E402
from towernmt.models.choices import PRECISIONS  # noqa: E402

FIGURES = ("towers", "update_cycle", "callbacks", "startup", "depth")


def main(arguments: list[str] | None = None) -> None:
    """Measure the figures that are asked for."""
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
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}; default: all")
    parser.add_argument("--config", choices=sorted(VOCABULARY), default="tiny", help="for the first three")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--batches", metavar="FILE", help="take the batches from this .npz file")
    parser.add_argument("--towers", nargs="+", type=int, default=[2, 4], help="numbers of towers beside one")
    parser.add_argument("--update-cycle", type=int, default=4, metavar="K")
    parser.add_argument("--rounds", type=int, default=40, help="of towers; half as many of update cycles")
    parser.add_argument("--pairs", type=int, default=150, help="whole and bare steps, for the callbacks")
    parser.add_argument("--starts", type=int, default=3, help="starts of the command, and rounds over the depths")
    parser.add_argument("--depths", nargs="+", type=int, default=[1, 2, 4, 6, 8, 10, 12])
    return parser


if __name__ == "__main__":
    main()
