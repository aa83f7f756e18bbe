"""Runs of a model of two weights on fake GPUs, or on a machine without them on as many CPU towers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu import fake_gpu


def train(towers: int, steps: int = 4, batches: int = 12, folder: Path | None = None, fails: int | None = None,
          **options: Any) -> dict[str, np.ndarray]:
    """Train with Adam, clipping and an average, and return the global variables by name.

    Args:
        towers: number of towers.
        steps: number of the last update.
        batches: number of batches.
        folder: folder of checkpoints, from which the run resumes and to which it writes; None for none.
        fails: number of a batch for which the last tower runs out of memory.
        options: further arguments of the trainer.
    """
    from tensorpack.callbacks import Callback
    from tensorpack.tfutils.tower import get_current_tower_context
    from tensorpack.train.interface import launch_train_with_config

    from tests.train.plain_model import PlainBatches, PlainModel
    from towernmt.callbacks.nan_guard import NaNGuard
    from towernmt.callbacks.saver import CheckpointSaver
    from towernmt.callbacks.stopping import StopAtStep
    from towernmt.core.graph_state import GraphSettings, configure_graph
    from towernmt.core.tf_compat import tf, tf1
    from towernmt.input_source import GeneralQueueInput
    from towernmt.optim.optimizer import make_optimizer
    from towernmt.optim.optimizer_settings import OptimizerSettings
    from towernmt.train.config import TrainConfig
    from towernmt.train.trainer import SyncMultiGPUTrainer

    class Model(PlainModel):
        """Makes an average; its last tower may run out of memory while the others have gradients."""

        def build_graph(self, x: Any, number: Any, target_tokens: Any) -> Any:
            last = get_current_tower_context().index == towers - 1
            self.too_large = {fails} if last and fails is not None else set()
            too_large = frozenset(self.too_large)
            loss = super().build_graph(x, number, target_tokens)
            self.too_large = too_large
            return loss

        def optimizer(self) -> Any:
            return make_optimizer(OptimizerSettings(learning_rate=0.1, epsilon=1e-4, ema_decay=0.9), clip_norm=1.0)

    class Kept(Callback):
        """Keeps the variables at the end of training."""

        def _after_train(self) -> None:
            # Whether a step that runs out of memory has advanced the clock depends on the threads.
            variables = [v for v in tf1.global_variables() if fails is None or v.op.name != "random_clock"]
            self.values = dict(zip([v.op.name for v in variables], self.trainer.sess.run(variables), strict=True))

    gpus = range(towers) if fake_gpu.LIBRARY in os.environ else None
    with tf.Graph().as_default():
        configure_graph(GraphSettings(seed=1))
        data, kept = GeneralQueueInput(PlainBatches(batches)), Kept()
        callbacks = [NaNGuard(), *([] if folder is None else [CheckpointSaver(folder, 1, data=data)]),
                     StopAtStep(steps), kept]
        trainer = SyncMultiGPUTrainer(gpus, None if gpus else towers, collectives="ring", **options)
        config = TrainConfig(Model(), data, callbacks, monitors=[], update_cycle=trainer.update_cycle)
        launch_train_with_config(config, trainer)
    return kept.values


def resumed() -> dict[str, np.ndarray]:
    """Resume a run of two towers with four, and then with one."""
    with tempfile.TemporaryDirectory() as folder:
        for towers, steps in ((2, 3), (4, 6), (1, 9)):
            values = train(towers, steps, folder=Path(folder))
    return values


RUNS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "resumed": resumed,
    "cut_cycle": lambda: train(2, steps=9, batches=5, update_cycle=3),
    "skipped": lambda: train(2, fails=1, skip_out_of_memory=1),
}
"""Functions by name that return the variables of a run: resumed with other towers; data that end within an update
cycle; a tower that runs out of memory."""
