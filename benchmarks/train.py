"""Training speed of the whole step: queue, tower, update, callbacks. Prints one JSON line a run.

    python benchmarks/train.py --config tiny --batch-tokens 1024 --precision float32

The work is a Transformer (tiny: hidden 256, filter 1024, 4 heads, 3+3 layers, joint vocabulary of 8,000;
base: 512, 2048, 8, 6+6, 32,000) with tied embeddings, dropout 0.1, label smoothing 0.1 and Adam, on batches of
sentences x longest side <= --batch-tokens. `--batches FILE.npz` takes them from a file: int arrays `s0`, `t0`,
`s1`, ... (ids end with EOS = 2, padded with 0) and their number `n`; `--data DIR` from prepared data with a vocabulary
of that size, as a run does; without either they are drawn here: log-normal lengths (mean about 23), Zipf-distributed
words.

Figures: target_tokens/s (`tgt_tok_s`) count no padding; `gflops` counts the products of forward and backward
pass (3 x forward) over real tokens; `wait_share` is the part of the time that training waited for data.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorpack.callbacks import Callback
from tensorpack.train.interface import launch_train_with_config
from tensorpack.utils import logger

from towernmt.callbacks.checkpoint import CheckpointSaver
from towernmt.callbacks.limits import StopAtStep
from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.progress import Progress
from towernmt.callbacks.schedule_callbacks import InverseSquareRootSchedule
from towernmt.cli.quiet import quiet_tensorflow
from towernmt.dataflow.batches import Batch, Batches, BatchSettings
from towernmt.dataflow.position import Position
from towernmt.dataflow.prepared import PreparedData
from towernmt.input_source import GeneralQueueInput
from towernmt.input_source.queue_input import ReadableBatches
from towernmt.models.precision import PRECISIONS, set_precision
from towernmt.models.randomness import set_seed
from towernmt.models.transformer import PRESETS, Transformer, TransformerSettings
from towernmt.tf_compat import tf
from towernmt.train.config import TrainConfig
from towernmt.train.optimizer import OptimizerSettings
from towernmt.train.session import make_deterministic
from towernmt.train.trainer import SyncMultiGPUTrainer

VOCABULARY = {"tiny": 8000, "base": 32000}
STEPS = {("tiny", 1024): (6, 24), ("tiny", 4096): (3, 9), ("base", 1024): (2, 6), ("base", 4096): (1, 3)}
"""Steps to warm up and steps to measure."""


class FixedBatches:
    """Batches in a list, over and over."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def batches_per_epoch(self) -> int:
        """Their number."""
        return len(self.batches)

    def read(self, position: Position | None = None, start: int = 0, step: int = 1) -> Iterator[tuple[Position, Batch]]:
        """Every `step`-th batch, for ever."""
        index = start
        while True:
            yield Position(0, 0, index + 1), self.batches[index % len(self.batches)]
            index += step


class Meter(Callback):
    """Tokens and seconds from the end of step `warm` to the end of the last step."""

    def __init__(self, data: GeneralQueueInput, warm: int) -> None:
        self._data, self._warm = data, warm

    def _trigger_step(self) -> None:
        if self.global_step == self._warm:
            self._began, self._cpu, self._before = time.perf_counter(), time.process_time(), self._data.statistics()
        self._ended, self._cpu_end, self._after = time.perf_counter(), time.process_time(), self._data.statistics()

    def result(self) -> dict[str, float]:
        """Wall and processor seconds, and the share of the time that training waited for data."""
        return {"wall_s": self._ended - self._began, "cpu_s": self._cpu_end - self._cpu,
                "wait_share": (self._after - self._before).wait_share}


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(VOCABULARY), default="tiny")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--batches", metavar="FILE", help="take the batches from this .npz file")
    parser.add_argument("--data", metavar="DIR", help="take the batches from prepared data")
    parser.add_argument("--steps", type=int, help="measure so many steps")
    parser.add_argument("--warm", type=int, help="steps before that")
    parser.add_argument("--towers", type=int, default=1)
    parser.add_argument("--gpu", type=int, help="one tower on this GPU")
    parser.add_argument("--nondeterministic", action="store_true", help="allow kernels that add in any order")
    options = parser.parse_args()
    warm, measured = STEPS.get((options.config, options.batch_tokens), (5, 25))
    warm, measured = options.warm or warm, options.steps or measured
    batches: ReadableBatches
    if options.data:
        batches = Batches(PreparedData(options.data), BatchSettings(options.batch_tokens, "longest"))
    else:
        batches = FixedBatches(
            load(options.batches) if options.batches else draw(VOCABULARY[options.config], options.batch_tokens))
    with quiet_tensorflow():
        figures = measure(options, batches, warm, measured)
    print(json.dumps({"peer": "towernmt", "mode": "train", "config": options.config,
                      "batch_tokens": options.batch_tokens, "dtype": options.precision, **figures}), flush=True)


def measure(options: argparse.Namespace, batches: ReadableBatches, warm: int, steps: int) -> dict[str, Any]:
    """Train `warm + steps` steps with the callbacks of a real run; figures of the last `steps`."""
    logger._logger.setLevel("WARNING")
    if not options.nondeterministic:
        make_deterministic()
    vocabulary = VOCABULARY[options.config]
    settings = TransformerSettings(
        **PRESETS[options.config], source_vocab_size=vocabulary, target_vocab_size=vocabulary)
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as directory:
        set_seed(1)
        set_precision(options.precision)
        data = GeneralQueueInput(batches)
        meter = Meter(data, warm)
        callbacks = [NaNGuard(), InverseSquareRootSchedule(3e-4, 100), CheckpointSaver(directory, every_steps=0),
                     Progress(50), meter, StopAtStep(warm + steps)]
        config = TrainConfig(Transformer(settings, OptimizerSettings(learning_rate=3e-4)), data, callbacks, monitors=[])
        trainer = SyncMultiGPUTrainer(None if options.gpu is None else [options.gpu],
                                      options.towers if options.gpu is None else None)
        launch_train_with_config(config, trainer)
    used = [batch for _, batch in islice(batches.read(), warm, warm + steps)]
    source = sum(int(b.source_length.sum()) for b in used)
    target = sum(int(b.target_length.sum()) for b in used)
    figures = meter.result()
    wall = figures["wall_s"]
    return {"steps": steps, "tgt_tok_s": target / wall, "src_tgt_tok_s": (source + target) / wall,
            "steps_s": steps / wall,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "gflops": train_flops(settings, source, target) / wall / 1e9,
            "tgt_tok_per_cpu_s": target / figures["cpu_s"], "threads": 2, **figures}


def train_flops(s: TransformerSettings, source: int, target: int, length: float = 24.0) -> float:
    """Operations of the matrix products of forward and backward pass, for sentences of `length` tokens."""
    d, f = s.hidden_size, s.filter_size
    encoder = s.encoder_layers * (8 * d * d + 4 * d * f + 4 * length * d)
    keys_values = s.decoder_layers * 4 * d * d
    decoder = s.decoder_layers * (12 * d * d + 4 * d * f + 8 * length * d)
    return 3.0 * (source * (encoder + keys_values) + target * (decoder + 2 * d * s.target_vocab_size))


def load(path: str) -> list[Batch]:
    """The batches of an .npz file."""
    with np.load(path) as arrays:
        return [make_batch(arrays[f"s{i}"], arrays[f"t{i}"]) for i in range(int(arrays["n"]))]


def draw(vocabulary: int, batch_tokens: int, pairs: int = 20000, seed: int = 1) -> list[Batch]:
    """Random pairs, sorted by length into batches, the batches shuffled."""
    random = np.random.default_rng(seed)
    lengths = np.clip(np.exp(random.normal(np.log(20.0), 0.5, (2, pairs))).round(), 3, 97).astype(int) + 1
    lengths[1] = np.clip(lengths[0] + random.integers(-2, 3, pairs), 3, 98)
    longest = lengths.max(0)
    groups: list[list[int]] = []
    group: list[int] = []
    for i in np.argsort(longest, kind="stable").tolist():
        if group and longest[i] * (len(group) + 1) > batch_tokens:
            groups.append(group)
            group = []
        group.append(i)
    groups.append(group)
    return [make_batch(*(_words(random, lengths[side][groups[g]], vocabulary) for side in range(2)))
            for g in random.permutation(len(groups))]


def _words(random: np.random.Generator, lengths: NDArray[np.int64], vocabulary: int) -> NDArray[np.int32]:
    """int32 `[batch, longest]`: Zipf-distributed ids behind the special ones, then EOS, then padding."""
    ids = np.minimum(random.zipf(1.2, (len(lengths), lengths.max())) + 3, vocabulary - 1)
    places = np.arange(lengths.max())
    ids[places[None] == lengths[:, None] - 1] = 2
    ids[places[None] >= lengths[:, None]] = 0
    return ids.astype(np.int32)


def make_batch(source: NDArray[Any], target: NDArray[Any]) -> Batch:
    """A batch from padded ids."""
    lengths = [(ids != 0).sum(1).astype(np.int32) for ids in (source, target)]
    return Batch(source.astype(np.int32), lengths[0], target.astype(np.int32), lengths[1],
                 np.array(lengths[1].sum(), np.float32))


if __name__ == "__main__":
    main()
