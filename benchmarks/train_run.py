"""One run of training as `towernmt train` makes it, with a clock beside it."""

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

from towernmt.callbacks.checkpoints.saver import CheckpointSaver
from towernmt.callbacks.reporting.progress import Progress
from towernmt.callbacks.schedules.named import InverseSquareRootSchedule
from towernmt.callbacks.stopping.limits import StopAtStep
from towernmt.callbacks.stopping.nan_guard import NaNGuard
from towernmt.callbacks.stopping.stop_signal import StopOnSignal
from towernmt.core.session import processors, session_config
from towernmt.core.tf_compat import tf
from towernmt.input_source import GeneralQueueInput, QueueMonitor
from towernmt.input_source.queue_input import ReadableBatches
from towernmt.models.kernels.precision import set_precision
from towernmt.models.layers.randomness import set_seed
from towernmt.run.settings import CheckpointSettings, LogSettings
from towernmt.train.config import TrainConfig
from towernmt.train.monitors import EventWriter, StatsWriter
from towernmt.train.trainer import SyncMultiGPUTrainer


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        precision: of matrix products.
        towers: on the CPU.
        gpu: one tower on this GPU instead.
        update_cycle: batches an update.
        warm: steps before the clock runs.
        steps: steps that are measured.
        pairs: steps after those, in turn with bare runs of the update; an even number.
        deterministic: only kernels that add in a fixed order.
    """

    precision: str = "float32"
    towers: int = 1
    gpu: int | None = None
    update_cycle: int = 1
    warm: int = 5
    steps: int = 25
    pairs: int = 0
    deterministic: bool = True

    @property
    def device(self) -> str:
        """Of the (first) tower."""
        return "/cpu:0" if self.gpu is None else f"/gpu:{self.gpu}"

    def trainer(self) -> SyncMultiGPUTrainer:
        """The trainer of these towers."""
        return SyncMultiGPUTrainer(None if self.gpu is None else [self.gpu],
                                   self.towers if self.gpu is None else None, update_cycle=self.update_cycle)


def bare_update(trainer: Any, data: Any) -> None:
    """One update as `session.run` of the operations that make it: no callback, no summary, nothing fetched."""
    for number in range(trainer.update_cycle - 1):
        trainer.sess.run(trainer._cycle.collect_op(number))
    trainer.sess.run(trainer.train_op)
    for _ in range(trainer.update_cycle):
        data.count_lost_batch()     # the input counts what its own callback dequeued


class Meter(Callback):
    """Measures `steps` steps behind `warm`; then `pairs` steps in turn with bare updates of the same batches.

    A whole step is the time from the end of this callback to its end of the next step: the run with all that the
    callbacks fetch, what they do with it, and tensorpack's loop. Of each pair, the second run finds the shapes of the
    first one known: so the order is step, bare, bare, step, step, bare, bare, ... on batches a a b b c c ...
    """

    def __init__(self, data: GeneralQueueInput, warm: int, steps: int, pairs: int) -> None:
        self._data, self._warm, self._last, self._pairs = data, warm, warm + steps, pairs
        self.whole: list[float] = []
        self.bare: list[float] = []
        self._resumed = 0.0

    def _trigger_step(self) -> None:
        now = time.perf_counter()
        if self.global_step == self._warm:
            self._load, self._before = Load(), self._data.statistics()
        if self.global_step == self._last:
            self.figures: dict[str, Any] = {
                **self._load.figures(), "wait_share": (self._data.statistics() - self._before).wait_share,
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
            if self._pairs:
                bare_update(self.trainer, self._data)       # TensorFlow prepares each set of fetches once
        if self.global_step > self._last:
            self.whole.append(now - self._resumed)
            for _ in range(2 * (len(self.whole) % 2)):
                self._run_bare()
        self._resumed = time.perf_counter()

    def _run_bare(self) -> None:
        begin = time.perf_counter()
        bare_update(self.trainer, self._data)
        self.bare.append(time.perf_counter() - begin)

    @property
    def ratios(self) -> list[float]:
        """For each pair, the whole step by the bare one."""
        return [whole / bare for whole, bare in zip(self.whole, self.bare, strict=True)]


def default_callbacks(directory: Path, data: GeneralQueueInput) -> tuple[list[Any], list[Any]]:
    """Callbacks and monitors of `towernmt train` at its default settings, but for validation."""
    kept = CheckpointSettings()
    callbacks = [NaNGuard(), InverseSquareRootSchedule(3e-4, 100),
                 CheckpointSaver(directory / "checkpoints", kept.steps, kept.minutes, kept.keep, data),
                 Progress(LogSettings().steps), QueueMonitor(data), StopOnSignal()]
    return callbacks, [EventWriter(directory / "log"), StatsWriter(directory / "log")]


def run(model: Any, batches: ReadableBatches, plan: Plan, more: Sequence[Any] = ()) -> Meter:
    """Train as `plan` says, in a graph of its own, with `more` callbacks behind the meter."""
    logger._logger.setLevel("WARNING")
    if plan.deterministic:
        tf.config.experimental.enable_op_determinism()
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as directory:
        set_seed(1)
        set_precision(plan.precision)
        data = GeneralQueueInput(batches)
        meter = Meter(data, plan.warm, plan.steps, plan.pairs)
        callbacks, monitors = default_callbacks(Path(directory), data)
        limit = StopAtStep(plan.warm + plan.steps + plan.pairs)
        config = TrainConfig(model, data, [*callbacks, meter, *more, limit], monitors=monitors,
                             update_cycle=plan.update_cycle)
        launch_train_with_config(config, plan.trainer())
    return meter


def measure(model: Any, batches: ReadableBatches, plan: Plan) -> dict[str, Any]:
    """The figures of one run; see `docs/notes/benchmarks.md`."""
    towers = plan.towers if plan.gpu is None else 1
    config = session_config(towers if plan.gpu is None else 1)

    def rate() -> float:
        return matmul_gflops(plan.precision, config, plan.device, towers)

    before = rate()
    meter = run(model, batches, plan)
    best = max(before, rate())
    cycle = plan.update_cycle
    used = [batch for _, batch in islice(batches.read(), plan.warm * cycle, (plan.warm + plan.steps) * cycle)]
    source = sum(int(batch.source_length.sum()) for batch in used)
    target = sum(int(batch.target_length.sum()) for batch in used)
    wall, cpu = meter.figures["wall_s"], meter.figures["cpu_s"]
    gflops = train_flops(model.architecture, model.settings, source, target) / wall / 1e9
    return {"steps": plan.steps, "tgt_tok_s": target / wall, "src_tgt_tok_s": (source + target) / wall,
            "steps_s": plan.steps / wall, "gflops": gflops, "matmul_gflops": best, "mfu": gflops / best,
            "step_to_bare": statistics.median(meter.ratios) if meter.ratios else None, "pairs": plan.pairs,
            "tgt_tok_per_cpu_s": target / cpu, "threads": processors(), **meter.figures}
