"""Measure the memory of a few steps on given batches, in a process of its own: see `memory_fit`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorpack.train.interface import launch_train_with_config

from towernmt.callbacks.stopping import NaNGuard
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import configure_graph
from towernmt.core.machine import peak_memory
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.input_source import GeneralQueueInput
from towernmt.optim.optimizer import TrainedVariables
from towernmt.run.assemble import graph_settings, hand_optimizer
from towernmt.run.directory import RunDirectory
from towernmt.run.memory_fit import BATCHES, OUT_OF_MEMORY, PEAK, load_batches
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer

STEPS = 4
"""The first steps take more than later ones: slots and buffers are made."""


class FixedBatches:
    """Saved batches, repeated in turn."""

    def __init__(self, batches: list[Batch], count: int) -> None:
        self._batches, self._count = batches, count

    def batches_per_epoch(self) -> int:
        """Return the number of batches."""
        return self._count

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Iterator[tuple[Position, Batch]]:
        """Yield every `step`-th batch from number `start` on."""
        for i in range(start, self._count, step):
            yield Position(0, 0, i + 1), self._batches[i % len(self._batches)]


def measure(directory: Path, gpus: list[int] | None, towers: int | None) -> int:
    """Train on the batches that lie there, with the settings that lie there.

    Returns:
        the most bytes in use at once: of the process, or of one of the GPUs.
    Raises:
        SettingsError: the GPU's memory is too small.
    """
    run = RunDirectory(directory)
    settings = run.settings()
    s = settings.train
    with tf.Graph().as_default():
        configure_graph(graph_settings(settings))
        source = GeneralQueueInput(FixedBatches(load_batches(directory / BATCHES), STEPS * s.update_cycle), feeders=1)
        model = run.load_model()
        hand_optimizer(model, settings)
        config = TrainConfig(model=model, data=source, callbacks=[NaNGuard(check_steps=0)], monitors=[],
                             update_cycle=s.update_cycle, max_epoch=1)
        launch_train_with_config(config, SyncMultiGPUTrainer(
            gpus=gpus, towers=towers, update_cycle=s.update_cycle, trained=TrainedVariables(s.only, s.freeze)))
    if gpus is None:
        return peak_memory()
    return max(int(tf.config.experimental.get_memory_info(f"GPU:{gpu}")["peak"]) for gpu in gpus)


def main() -> int:
    """The command: `python -m towernmt.run.measure_step DIRECTORY --towers N`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gpu", default=None)
    parser.add_argument("--towers", type=int, default=None)
    options = parser.parse_args()
    gpus = [int(gpu) for gpu in options.gpu.split(",")] if options.gpu else None
    try:
        peak = measure(options.directory, gpus, options.towers)
    except (SettingsError, MemoryError, tf.errors.ResourceExhaustedError) as error:
        if not isinstance(error, SettingsError) or isinstance(error.__cause__, tf.errors.ResourceExhaustedError):
            return OUT_OF_MEMORY
        raise
    (options.directory / PEAK).write_text(json.dumps(peak), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
