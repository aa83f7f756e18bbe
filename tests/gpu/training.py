"""A program that trains small models on fake GPUs or on CPU towers, and writes the final variables and the counts.

    python -m tests.gpu.training CASES.json OUTPUT [RUN ...]

Each case is trained in its own graph, which CPU towers run as it was built. Then the named runs of `plain_runs` are
made. `OUTPUT/NAME.npz` gets the values of its variables: those that an update trains, and their averages, as
`weights/...`, others as `state/...`. `OUTPUT/NAME.tsv` gets what the fake GPUs counted in `COUNTED` steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu import fake_gpu, plain_runs
from tests.graphs_as_built import run_graphs_as_built

WARM, COUNTED = 2, 2
"""Steps before the counted ones, and counted steps."""
RATES = {"float32": 1e-3, "bfloat16": 1e-4, "float16": 1e-4}
"""Learning rates by precision: four updates move a weight by up to four times the rate."""
VOCABULARY, ROWS, LENGTH = 1200, 40, 12
"""Words, and the size of a batch. The softmax, the tables and the hidden states of a batch exceed `SMALL` bytes."""
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"hidden_size": 48, "filter_size": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "seq2seq": {"embedding_size": 48, "hidden_size": 48, "layers": 1},
    "rnnsearch": {"embedding_size": 48, "encoder_size": 24, "decoder_size": 48, "attention_size": 48,
                  "read_out_size": 48},
    "convs2s": {"embedding_size": 48, "encoder": "1x48/3", "decoder": "1x48/3", "output_size": 48},
}
"""Sizes of the models by architecture."""


@dataclass(frozen=True)
class Case:
    """A training to run on fake GPUs or CPU towers.

    Attributes:
        architecture: name of the model's architecture.
        gpus: CUDA's numbers of the GPUs; on a machine without fake GPUs, the same number of CPU towers is used.
        precision: dtype of matrix products.
        update_cycle: batches per update.
        staging: whether batches are copied in advance; None for the default.
        ema_decay: decay of the moving average; 0 for none.
        optimizer: name of the optimizer.
        recompute: whether layers are computed again in the backward pass.
        deterministic: whether only deterministic kernels are used.
        collectives: how several GPUs add their gradients.
        model: further settings of the model.
    """

    architecture: str = "transformer"
    gpus: tuple[int, ...] = (0,)
    precision: str = "float32"
    update_cycle: int = 1
    staging: bool | None = None
    ema_decay: float = 0.0
    optimizer: str = "adam"
    recompute: bool = False
    deterministic: bool = True
    collectives: str = "auto"
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the files of the case, unique among cases."""
        parts = [self.architecture, "gpu" + "".join(map(str, self.gpus)), self.precision]
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name not in ("architecture", "gpus", "precision") and value != _default(item):
                parts.append(f"{item.name}-{value}" if not isinstance(value, dict) else "-".join(map(str, value)))
        return "_".join(parts)

    def on_cpu(self) -> Case:
        """Return the case with the same results on CPU towers, without the options that matter on GPUs only."""
        return dataclasses.replace(self, gpus=tuple(range(len(self.gpus))), staging=None, deterministic=True,
                                   collectives="auto")


def _default(item: Any) -> Any:
    return {} if item.default is dataclasses.MISSING else item.default


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file."""
    cases = json.loads(path.read_text(encoding="utf-8"))
    return [Case(**{**case, "gpus": tuple(case["gpus"])}) for case in cases]


def write_cases(path: Path, cases: list[Case]) -> None:
    """Write cases for this program."""
    path.write_text(json.dumps([dataclasses.asdict(case) for case in cases]), encoding="utf-8")


def batches() -> list[Any]:
    """Return a few batches of random words."""
    from towernmt.dataflow.batches.batch import Batch

    random, made = np.random.default_rng(1), []
    for _ in range(4):
        sides = []
        for _ in range(2):
            lengths = random.integers(3, LENGTH + 1, ROWS).astype(np.int32)
            lengths[0] = LENGTH
            ids = random.integers(4, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
            columns = np.arange(LENGTH)[None]
            ids = np.where(columns < lengths[:, None] - 1, ids, np.where(columns == lengths[:, None] - 1, 2, 0))
            sides += [ids.astype(np.int32), lengths]
        made.append(Batch(*sides, np.array(sides[3].sum(), np.float32)))
    return made


class Repeated:
    """A list of batches that repeats for ever."""

    def __init__(self, listed: list[Any]) -> None:
        self.listed = listed

    def batches_per_epoch(self) -> int:
        return len(self.listed)

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Iterator[Any]:
        from towernmt.dataflow.batches.batch import Position

        index = start
        while True:
            yield Position(0, 0, index + 1), self.listed[index % len(self.listed)]
            index += step


def train(case: Case, fake: bool) -> tuple[dict[str, Any], str | None]:
    """Train a case, and return its variables by name and the counts of `COUNTED` steps.

    In bfloat16, CPU towers use the products of GPUs, since those of the CPU round otherwise.

    Args:
        case: the case.
        fake: whether it is trained on fake GPUs.
    """
    from contextlib import nullcontext
    from functools import partial
    from unittest.mock import patch

    from tensorpack.callbacks import Callback
    from tensorpack.train.interface import launch_train_with_config
    from tensorpack.utils import logger

    from towernmt.callbacks.learning_rate import LearningRateSchedule
    from towernmt.callbacks.nan_guard import NaNGuard
    from towernmt.callbacks.schedules import inverse_square_root
    from towernmt.callbacks.stopping import StopAtStep
    from towernmt.core.graph_state import GraphSettings, configure_graph
    from towernmt.core.tf_compat import tf, tf1
    from towernmt.input_source import GeneralQueueInput
    from towernmt.models import architecture, kernels
    from towernmt.optim.optimizer import make_optimizer
    from towernmt.optim.optimizer_settings import OptimizerSettings
    from towernmt.train.config import TrainConfig
    from towernmt.train.trainer import SyncMultiGPUTrainer

    logger._logger.setLevel("WARNING")

    class Look(Callback):
        """Reads the counts and the variables."""

        counts: str | None = None
        values: dict[str, Any]

        def _trigger_step(self) -> None:
            if fake and self.global_step == WARM:
                fake_gpu.reset()
            if self.global_step == WARM + COUNTED:
                self.counts = fake_gpu.snapshot() if fake else None
                trained = [v.op.name for v in tf1.trainable_variables()]
                weights = {*trained, *(f"{name}/ExponentialMovingAverage" for name in trained)}
                variables = tf1.global_variables()
                names = [f"{'weights' if v.op.name in weights else 'state'}/{v.op.name}" for v in variables]
                self.values = dict(zip(names, self.trainer.sess.run(variables), strict=True))

    products = patch.object(kernels, "on_gpu", lambda x: True) if case.precision == "bfloat16" else nullcontext()
    with tf.Graph().as_default(), products:
        configure_graph(GraphSettings(seed=1, precision=case.precision, gradient_checkpointing=case.recompute,
                                      deterministic=case.deterministic))
        kind = architecture(case.architecture)
        sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, **SIZES[case.architecture]}
        model = kind.model(kind.settings(**{**sizes, **case.model}))
        model.make_optimizer = partial(make_optimizer, OptimizerSettings(
            name=case.optimizer, learning_rate=RATES[case.precision], epsilon=1e-4, ema_decay=case.ema_decay))
        data, look = GeneralQueueInput(Repeated(batches())), Look()
        schedule = LearningRateSchedule(inverse_square_root(RATES[case.precision], 2))
        callbacks = [NaNGuard(), schedule, look, StopAtStep(WARM + COUNTED)]
        config = TrainConfig(model, data, callbacks, monitors=[], update_cycle=case.update_cycle)
        trainer = SyncMultiGPUTrainer(case.gpus if fake else None, None if fake else len(case.gpus),
                                      update_cycle=case.update_cycle, staging=case.staging,
                                      collectives=case.collectives)
        launch_train_with_config(config, trainer)
    return look.values, look.counts


def main(cases: str, output: str, *runs: str) -> None:
    """Train the cases of a file in order; a case or run that fails leaves its error in `OUTPUT/NAME.error`."""
    fake = fake_gpu.LIBRARY in os.environ
    if fake:
        fake_gpu.load()
    else:
        run_graphs_as_built()
    for case in read_cases(Path(cases)):
        with _kept_error(Path(output), case.name):
            values, counts = train(case, fake)
            if counts is not None:
                (Path(output) / f"{case.name}.tsv").write_text(counts, encoding="utf-8")
            fake_gpu.write_arrays(Path(output) / f"{case.name}.npz", values)
    for run in runs:
        with _kept_error(Path(output), run):
            fake_gpu.write_arrays(Path(output) / f"{run}.npz", plain_runs.RUNS[run]())


@contextmanager
def _kept_error(output: Path, name: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        (output / f"{name}.error").write_text(traceback.format_exc(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
