"""Run and measure one training as `towernmt train` does."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from machine import Load, matmul_gflops
from tensorpack.callbacks import Callback
from tensorpack.train.interface import launch_train_with_config
from tensorpack.utils import logger
from train_flops import train_flops

from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.progress import Progress
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.schedules import inverse_square_root
from towernmt.callbacks.stop_on_signal import StopOnSignal
from towernmt.callbacks.stopping import StopAtStep
from towernmt.core.graph_state import GraphSettings, configure_graph
from towernmt.core.machine import processors
from towernmt.core.session import session_config, use_gpus
from towernmt.core.tf_compat import tf
from towernmt.input_source import GeneralQueueInput, QueueMonitor
from towernmt.input_source.queue_input import ReadableBatches
from towernmt.run.run_settings import CheckpointSettings, LogSettings
from towernmt.train.config import TrainConfig
from towernmt.train.monitors import EventWriter, StatsWriter
from towernmt.train.trainer import SyncMultiGPUTrainer


@dataclass(frozen=True)
class Plan:
    """Options of one measured run.

    Attributes:
        precision: dtype of matrix products.
        towers: number of CPU towers.
        gpu: number of the GPU for a single tower, instead of CPU towers.
        update_cycle: batches per update.
        warm: warm-up steps.
        steps: measured steps.
        pairs: steps after those that alternate with bare updates; an even number.
        deterministic: whether to use only deterministic kernels.
        fused_norm: whether cuDNN normalises layers on a GPU.
        tf32: whether a GPU rounds the factors of float32 products to TF32.
    """

    precision: str = "float32"
    towers: int = 1
    gpu: int | None = None
    update_cycle: int = 1
    warm: int = 5
    steps: int = 25
    pairs: int = 0
    deterministic: bool = True
    fused_norm: bool = True
    tf32: bool = True

    @property
    def device(self) -> str:
        """Device of the first tower."""
        return "/cpu:0" if self.gpu is None else use_gpus([self.gpu])[0]

    def trainer(self) -> SyncMultiGPUTrainer:
        """Return the trainer of these towers."""
        return SyncMultiGPUTrainer(None if self.gpu is None else [self.gpu],
                                   self.towers if self.gpu is None else None, update_cycle=self.update_cycle)


def bare_update(trainer: Any, data: GeneralQueueInput) -> None:
    """Run the operations of one update with `session.run`, without callbacks, summaries or fetches."""
    collecting = [trainer._cycle.collect_op(number) for number in range(trainer.update_cycle - 1)]
    for operation in [*collecting, trainer.train_op]:
        if data.staging is not None:
            data.run_with_batch(trainer.sess, operation)    # another run must have copied the batch to the GPU
        else:
            trainer.sess.run(operation)
            data.count_lost_batch()     # the input counts only batches that its own callback dequeues


class Meter(Callback):
    """Callback that measures `steps` steps after `warm`, then `pairs` steps in alternation with bare updates.

    A complete step is the time between two ends of this callback: the run with the fetches of all callbacks, their
    work, and tensorpack's loop. Both runs of a pair use the same batch. The second run profits from known shapes, so
    the order is step, bare, bare, step, step, bare, bare, ... on batches a a b b c c ...
    """

    def __init__(self, data: GeneralQueueInput, warm: int, steps: int, pairs: int) -> None:
        self._data, self._warm, self._last, self._pairs = data, warm, warm + steps, pairs
        self.complete_steps: list[float] = []
        self.bare: list[float] = []
        self._resumed = 0.0

    def _trigger_step(self) -> None:
        step_end = time.perf_counter()
        if self.global_step == self._warm:
            self._load, self._before = Load(), self._data.statistics()
        if self.global_step == self._last:
            self.figures: dict[str, Any] = {
                **self._load.figures(), "wait_share": (self._data.statistics() - self._before).wait_share,
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
            if self._pairs:
                bare_update(self.trainer, self._data)       # TensorFlow prepares each set of fetches at its first run
        if self.global_step > self._last:
            self.complete_steps.append(step_end - self._resumed)
            for _ in range(2 * (len(self.complete_steps) % 2)):
                self._run_bare()
        self._resumed = time.perf_counter()

    def _run_bare(self) -> None:
        begin = time.perf_counter()
        bare_update(self.trainer, self._data)
        self.bare.append(time.perf_counter() - begin)

    @property
    def ratios(self) -> list[float]:
        """Complete step divided by bare update, for each pair."""
        return [complete / bare for complete, bare in zip(self.complete_steps, self.bare, strict=True)]


def default_callbacks(directory: Path, data: GeneralQueueInput) -> tuple[list[Any], list[Any]]:
    """Return the default callbacks and monitors of `towernmt train` without validation."""
    checkpoint_settings = CheckpointSettings()
    callbacks = [NaNGuard(), LearningRateSchedule(inverse_square_root(3e-4, 100)),
                 CheckpointSaver(directory / "checkpoints", checkpoint_settings.steps, checkpoint_settings.minutes,
                                 checkpoint_settings.keep, data),
                 Progress(LogSettings().steps), QueueMonitor(data), StopOnSignal()]
    return callbacks, [EventWriter(directory / "log"), StatsWriter(directory / "log")]


def run(model: Any, batches: ReadableBatches, plan: Plan, further_callbacks: Sequence[Any] = ()) -> Meter:
    """Train by `plan` in a new graph, with `further_callbacks` after the meter, and return the meter."""
    logger._logger.setLevel("WARNING")
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as directory:
        configure_graph(GraphSettings(seed=1, precision=plan.precision, deterministic=plan.deterministic,
                                      fused_norm=plan.fused_norm, tf32=plan.tf32))
        data = GeneralQueueInput(batches)
        meter = Meter(data, plan.warm, plan.steps, plan.pairs)
        callbacks, monitors = default_callbacks(Path(directory), data)
        limit = StopAtStep(plan.warm + plan.steps + plan.pairs)
        config = TrainConfig(model, data, [*callbacks, meter, *further_callbacks, limit], monitors=monitors,
                             update_cycle=plan.update_cycle)
        launch_train_with_config(config, plan.trainer())
    return meter


def measure(model: Any, batches: ReadableBatches, plan: Plan) -> dict[str, Any]:
    """Run and return the figures that `docs/notes/benchmarks.md` explains."""
    towers, device = plan.towers if plan.gpu is None else 1, plan.device
    config = session_config(towers)

    def rate() -> float:
        return matmul_gflops(plan.precision, config, device, towers, tf32=plan.tf32)

    before = rate()
    meter = run(model, batches, plan)
    peak_gflops = max(before, rate())
    cycle = plan.update_cycle
    measured = islice(batches.read(), plan.warm * cycle, (plan.warm + plan.steps) * cycle)
    trained_batches = [batch for _, batch in measured]
    source = sum(int(batch.source_length.sum()) for batch in trained_batches)
    target = sum(int(batch.target_length.sum()) for batch in trained_batches)
    wall, cpu = meter.figures["wall_s"], meter.figures["cpu_s"]
    gflops = train_flops(model.architecture, model.settings, source, target) / wall / 1e9
    return {"steps": plan.steps, "tgt_tok_s": target / wall, "src_tgt_tok_s": (source + target) / wall,
            "steps_s": plan.steps / wall, "gflops": gflops, "matmul_gflops": peak_gflops, "mfu": gflops / peak_gflops,
            "step_to_bare": statistics.median(meter.ratios) if meter.ratios else None, "pairs": plan.pairs,
            "tgt_tok_per_cpu_s": target / cpu, "threads": processors(), **meter.figures}
