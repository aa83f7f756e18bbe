"""A program that counts the copies, bytes and kernels of a training step on fake GPUs, as rows of a table.

    python -m tests.gpu.step_counts --config base --gpus 1 2 4 8

Each row is measured in a separate process. The batch is small, since the counts do not depend on it.

`--shrink N` divides the vocabulary, the widths of the model and the sizes by which gradients are grouped, so that a
large model needs less memory. The numbers of kernels and copies stay. The bytes between cards are multiplied by N * N,
which exceeds those of the full model by less than a percent, because vectors shrink only by N.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.gpu import fake_gpu

ROOT = Path(__file__).parents[2]
WARM, COUNTED = 2, 2
WIDTHS = ("hidden_size", "filter_size", "embedding_size", "encoder_size", "decoder_size", "attention_size",
          "read_out_size", "output_size")
"""Settings of models that `--shrink` divides."""
HEADINGS = ("model", "precision", "GPUs", "cycle", "kernels of the first card", "of another", "to cards", "to host",
            "between cards", "MB between", "MB of a card")


def row(counts: fake_gpu.Counts, gpus: int, steps: int, shrink: int) -> list[str]:
    """Return the figures of a step, as cells."""

    def copied(wanted: Callable[[fake_gpu.Copy], bool]) -> tuple[float, float]:
        chosen = [copy for copy in counts.copies if wanted(copy)]
        return sum(copy.times for copy in chosen) / steps, sum(copy.size for copy in chosen) / steps

    def kernels(card: int) -> float:
        return sum(kernel.times for kernel in fake_gpu.launched(counts) if kernel.card == str(card)) / steps

    host = fake_gpu.HOST
    to_cards, to_host = copied(lambda copy: copy.source == host), copied(lambda copy: copy.target == host)
    between = copied(lambda copy: host not in (copy.source, copy.target) and copy.source != copy.target)
    most = max(copied(lambda copy, card=str(card): host not in (copy.source, copy.target)
                      and copy.source == card != copy.target)[1] for card in range(gpus))
    return [f"{kernels(0):g}", f"{kernels(gpus - 1):g}" if gpus > 1 else "",
            f"{to_cards[0]:g} ({to_cards[1] / 1024:.1f} KB)", f"{to_host[0]:g} ({to_host[1] / 1024:.1f} KB)",
            f"{between[0]:g}", f"{between[1] * shrink ** 2 / 1e6:.1f}", f"{most * shrink ** 2 / 1e6:.1f}"]


def measure(architecture: str, config: str, precision: str, gpus: int, cycle: int, collectives: str, shrink: int
            ) -> str:
    """Train for a few steps, and return the counts of `COUNTED` of them as text."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from functools import partial
    from unittest.mock import patch

    from tensorpack.callbacks import Callback
    from tensorpack.train.interface import launch_train_with_config
    from tensorpack.utils import logger
    from train_run import default_callbacks
    from train_work import VOCABULARY, FixedBatches, draw, make_model

    from towernmt.callbacks.stopping import StopAtStep
    from towernmt.core.graph_state import GraphSettings, configure_graph
    from towernmt.core.tf_compat import tf
    from towernmt.input_source import GeneralQueueInput
    from towernmt.optim import gradients
    from towernmt.train import collectives as collective
    from towernmt.train import trainer
    from towernmt.train.config import TrainConfig

    logger._logger.setLevel("WARNING")

    class Look(Callback):
        text = ""

        def _trigger_step(self) -> None:
            if self.global_step == WARM:
                fake_gpu.reset()
            if self.global_step == WARM + COUNTED:
                self.text = fake_gpu.snapshot()

    size = "tiny" if config == "tiny" else "base"
    bucket = partial(collective.Collectives, bucket_bytes=collective.BUCKET_BYTES // shrink ** 2)
    small = patch.object(gradients, "SMALL_GRADIENT", gradients.SMALL_GRADIENT // shrink)       # the largest of vectors
    with (tf.Graph().as_default(), tempfile.TemporaryDirectory() as directory, small,
          patch.object(trainer, "Collectives", bucket)):
        configure_graph(GraphSettings(seed=1, precision=precision, deterministic=True))
        preset, words = None if config in ("tiny", "base") else config, VOCABULARY[size] // shrink
        full = make_model(architecture, size, preset).settings
        widths = {name: getattr(full, name) // shrink for name in WIDTHS if hasattr(full, name)}
        model: Any = make_model(architecture, size, preset, source_vocab_size=words, target_vocab_size=words, **widths)
        data, look = GeneralQueueInput(FixedBatches(draw(words, 40 * gpus, pairs=400))), Look()
        callbacks, monitors = default_callbacks(Path(directory), data)
        saver = next(callback for callback in callbacks if type(callback).__name__ == "CheckpointSaver")
        callbacks.remove(saver)         # a checkpoint of a large model takes longer than the steps
        callbacks += [look, StopAtStep(WARM + COUNTED)]
        launch_train_with_config(TrainConfig(model, data, callbacks, monitors=monitors, update_cycle=cycle),
                                 trainer.SyncMultiGPUTrainer(list(range(gpus)), update_cycle=cycle,
                                                             collectives=collectives))
    return look.text


def main(arguments: Sequence[str]) -> None:
    """Print a row for each number of GPUs, precision and update cycle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", default="transformer")
    parser.add_argument("--config", default="tiny", help="tiny, base or big")
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--cycle", nargs="+", type=int, default=[1])
    parser.add_argument("--collectives", default="ring", choices=("ring", "sum"),
                        help="how gradients are added (default: %(default)s, which copies the bytes of NCCL)")
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="divide the widths of the model by N")
    parser.add_argument("--write", help="measure one row in this process, and write its counts to this file")
    options = parser.parse_args(arguments)
    if options.write:
        fake_gpu.load()
        text = measure(options.architecture, options.config, options.precision[0], options.gpus[0], options.cycle[0],
                       options.collectives, options.shrink)
        Path(options.write).write_text(text, encoding="utf-8")
        os._exit(0)     # large models take long to be deleted
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    library = fake_gpu.build(Path(tempfile.gettempdir()) / "fake_gpu")
    for precision in options.precision:
        for cycle in options.cycle:
            for gpus in options.gpus:
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder) / "counts"
                    subprocess.run([sys.executable, "-m", "tests.gpu.step_counts", "--architecture",
                                    options.architecture, "--config", options.config, "--precision", precision,
                                    "--gpus", str(gpus), "--cycle", str(cycle), "--collectives",
                                    options.collectives, "--shrink", str(options.shrink), "--write", str(file)],
                                   env=fake_gpu.environment(library, gpus), cwd=ROOT, check=True)
                    cells = row(fake_gpu.parse(file.read_text(encoding="utf-8")), gpus, COUNTED, options.shrink)
                print("| " + " | ".join([f"{options.architecture} {options.config}", precision, str(gpus), str(cycle),
                                         *cells]) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
