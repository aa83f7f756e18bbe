"""Find the largest batch whose step fits into a memory limit, by measuring real steps in separate processes.

Such a process runs `python -m towernmt.run.memory_fit DIRECTORY`. It ends with its parent process, which closes its
standard input, because a killed parent cannot enforce the limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.train.interface import launch_train_with_config
from tensorpack.utils import logger

from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.gpus import smallest_memory
from towernmt.core.graph_state import configure_graph
from towernmt.core.machine import peak_memory
from towernmt.core.session import use_gpus
from towernmt.core.temporary_directories import temporary_directory
from towernmt.core.tf_compat import tf
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.dataflow.batches.training_data import TrainingData, make_batches
from towernmt.input_source import GeneralQueueInput
from towernmt.models.architectures import architecture
from towernmt.optim.optimizer import TrainedVariables
from towernmt.run.assemble import graph_settings, set_model_optimizer
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import Settings
from towernmt.train.config import TrainConfig
from towernmt.train.trainer import SyncMultiGPUTrainer

SAMPLED_BATCHES = 300
"""Number of batches from the beginning of the data, of which the largest are measured."""
LARGEST = 1 << 20
"""Maximum of data.batch_tokens."""
BATCHES, PEAK = "batches.npz", "peak.json"
"""Files in the directory of a measurement, next to settings.yaml: the batches, and the measured bytes."""
OUT_OF_MEMORY = 3
"""Exit status of a measurement whose step did not fit into the device's memory."""
GIB = 1 << 30
USABLE = 0.9
"""Fraction of a GPU's memory that tensors can fill, by estimate: the rest is CUDA's, or gaps between tensors."""
STEPS = 4
"""Number of measured steps; the first steps allocate the optimizer's slots and buffers."""


def wants_search(settings: Settings, run: RunDirectory) -> bool:
    """Return whether `data.batch_tokens` must be searched: there is a memory limit, and no run with the same limit."""
    if not settings.data.memory_gb:
        return False
    return not run.exists() or run.settings_like(settings).data.memory_gb != settings.data.memory_gb


def with_found_batch(settings: Settings, run: RunDirectory) -> Settings:
    """Return the settings with the batch size that suited the memory limit of a resumed run at its start.

    Another batch size would change the order of the pairs, and might need more memory.
    """
    if not settings.data.memory_gb or not run.exists():
        return settings
    batch_tokens = run.settings_like(settings).data.batch_tokens
    if batch_tokens == settings.data.batch_tokens:
        return settings
    logger.info(f"data.batch_tokens={batch_tokens}, which suits data.memory_gb={settings.data.memory_gb:g}.")
    return with_batch_tokens(settings, batch_tokens)


def with_fitting_batch(settings: Settings, data: TrainingData, gpus: Sequence[int] | None,
                       towers: int | None) -> Settings:
    """Return the settings with the largest `data.batch_tokens` whose step fits into `data.memory_gb`.

    Args:
        settings: settings of the run.
        data: training data.
        gpus: numbers of the GPUs; None for the CPU.
        towers: number of towers on the CPU.

    Raises:
        SettingsError: the limit is negative, the system does not report the memory of a process, or the smallest batch
            does not fit.
    """
    limit = settings.data.memory_gb
    if limit < 0:
        raise SettingsError(f"data.memory_gb={limit:g} must be 0 (use data.batch_tokens) or a limit in GiB.")
    if gpus is None and not peak_memory():
        raise SettingsError(f"data.memory_gb={limit:g}: this system does not report the memory of a process (it has no "
                            "/proc/self/status): set data.memory_gb=0, and data.batch_tokens.")
    memory = smallest_memory(gpus) / GIB
    if memory and limit > USABLE * memory:
        logger.warning(f"data.memory_gb={limit:g} is more than {USABLE:.0%} of the {memory:.1f} GiB of a GPU: batches "
                       "may run out of memory, because TensorFlow's allocator leaves gaps. Set it to "
                       f"{int(USABLE * memory)} or less.")
    logger.info(f"Searching for the largest data.batch_tokens whose step fits into data.memory_gb={limit:g} ...")
    peaks: dict[int, int | None] = {}

    def measure(tokens: int) -> int | None:
        peaks[tokens] = peak_of_step(with_batch_tokens(settings, tokens), data, gpus, towers, int(limit * GIB))
        logger.info(f"data.batch_tokens={tokens}: " + (
            "does not fit." if peaks[tokens] is None else f"{(peaks[tokens] or 0) / GIB:.2f} GiB."))
        return peaks[tokens]

    first = 64 if settings.data.batch_type == "sentences" else 1024
    batch_tokens = largest_that_fits(measure, int(limit * GIB), first)
    if batch_tokens is None:
        checkpointed = settings.train.gradient_checkpointing
        kind = architecture(settings.architecture).model        # perhaps a function that makes the model
        can_checkpoint = getattr(kind, "recomputes", False) and not checkpointed
        raise SettingsError(f"data.memory_gb={limit:g}: not even data.batch_tokens={min(peaks)} fits (it needs more "
                            f"than {limit:g} GiB): raise the limit, "
                            f"{'set train.gradient_checkpointing=true, ' if can_checkpoint else ''}or use a smaller "
                            "model.")
    logger.info(f"data.batch_tokens={batch_tokens} is the largest that fits into {limit:g} GiB.")
    return with_batch_tokens(settings, batch_tokens)


def with_batch_tokens(settings: Settings, tokens: int) -> Settings:
    """Return the settings with another `data.batch_tokens`."""
    return dataclasses.replace(settings, data=dataclasses.replace(settings.data, batch_tokens=tokens))


def candidate_size(index: int) -> int:
    """Return the batch size of an index; the sizes are 3 to 6 % apart: 16, 17, ... 31, 32, 34, ... 62, 64, 68, ..."""
    return (16 + index % 16) << index // 16


def largest_that_fits(measure: Callable[[int], int | None], limit: int, first: int = 1024) -> int | None:
    """Return the largest `candidate_size` whose measure, which grows with the size, is at most `limit`.

    Memory is nearly linear in the size, so two measurements predict the next candidate.

    Args:
        measure: returns the bytes at a size; None for too many.
        limit: in bytes.
        first: the first size.

    Returns:
        None if the smallest is too large.
    """
    end = next(i for i in itertools.count() if candidate_size(i) > LARGEST)
    fits, too_large = -1, end                               # indices of candidate sizes
    bytes_at: dict[int, int] = {}
    count = 0
    index = next(i for i in itertools.count() if candidate_size(i) >= first)
    while too_large - fits > 1:
        used = measure(candidate_size(index))
        if used is not None:
            bytes_at[candidate_size(index)] = used
        if used is not None and used <= limit:
            fits = index
        else:
            too_large = index
        count += 1
        # After five predictions memory is evidently not linear. Bisection needs at most five more measurements.
        index = _next_index(fits, too_large, end, bytes_at, limit, interpolate=count <= 5)
    return candidate_size(fits) if fits >= 0 else None


def _next_index(fits: int, too_large: int, end: int, bytes_at: dict[int, int], limit: int, interpolate: bool) -> int:
    """Return an index strictly between both, at the expected limit; by linear interpolation if `interpolate` is set."""
    guess = (fits + too_large) // 2
    if too_large == end:
        guess = fits + 32                                   # four times the size
    elif fits < 0:
        guess = too_large - 32
    if interpolate and len(bytes_at) >= 2:
        (low, low_bytes), (high, high_bytes) = sorted(bytes_at.items())[-2:]
        if high_bytes > low_bytes:
            expected = low + (limit - low_bytes) * (high - low) / (high_bytes - low_bytes)
            interpolated = next((i for i in range(end) if candidate_size(i + 1) > expected), end)
            guess = min(guess, interpolated) if too_large == end else interpolated
    return min(max(guess, fits + 1), too_large - 1)


def peak_of_step(settings: Settings, data: TrainingData, gpus: Sequence[int] | None, towers: int | None,
                 limit: int) -> int | None:
    """Measure the peak memory of a process that trains on the largest batches of these settings, in bytes.

    On the CPU, this is the memory of the process; on GPUs, that of the GPU with the highest peak.

    Returns:
        None if the peak exceeds `limit`, or if the device ran out of memory.

    Raises:
        TowerNMTError: the process failed for another reason.
    """
    process: subprocess.Popen[bytes] | None = None

    def end_process() -> None:
        if process is not None:
            process.kill()
            process.communicate()

    with temporary_directory("measuring the memory of a step", end_work=end_process) as directory:
        RunDirectory(directory).save_settings(settings)
        save_batches(largest_batches(settings, data), directory / BATCHES)
        command = [sys.executable, "-m", "towernmt.run.memory_fit", str(directory)]
        command += ["--gpu", ",".join(map(str, gpus))] if gpus is not None else ["--towers", str(towers or 1)]
        with open(directory / "output", "w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
            try:
                within_limit = _stays_within(process, limit if gpus is None else None)
            finally:
                end_process()
            if not within_limit or process.returncode in (OUT_OF_MEMORY, -signal.SIGKILL):    # killed by the system
                return None
            output.seek(0)
            last = (output.read().strip().splitlines() or ["it printed nothing"])[-1]
        if process.returncode:
            raise TowerNMTError(f"Measuring data.batch_tokens={settings.data.batch_tokens} failed: {last}")
        peak = int(json.loads((directory / PEAK).read_text(encoding="utf-8")))
        return peak if peak <= limit else None


def _stays_within(process: subprocess.Popen[bytes], limit: int | None) -> bool:
    """Wait for a process to end; return False as soon as it uses more bytes than `limit`."""
    while process.poll() is None:
        if limit is not None and peak_memory(process.pid) > limit:
            return False
        time.sleep(0.05)
    return True


def largest_batches(settings: Settings, data: TrainingData) -> list[Batch]:
    """Return the batches with the most positions and with the most pairs of positions from the beginning of the data.

    Raises:
        DataError: the data have no batch.
    """
    weight = getattr(settings.model, "guided_alignment_weight", 0.0)
    stream = make_batches(data, settings.data, 1, alignments=weight > 0, ahead=False).read()
    batches = [batch for _, batch in itertools.islice(stream, SAMPLED_BATCHES)]
    if isinstance(stream, Generator):
        stream.close()
    if not batches:
        raise DataError(f"{data.directory} has no batch to train on: pass data with sentence pairs.")
    return [max(batches, key=_positions), max(batches, key=_position_pairs)]


def _positions(batch: Batch) -> int:
    return len(batch) * (batch.source.shape[1] + batch.target.shape[1])


def _position_pairs(batch: Batch) -> int:
    source, target = batch.source.shape[1], batch.target.shape[1]
    return len(batch) * (source * source + source * target + target * target)


def save_batches(batches: list[Batch], file: Path) -> None:
    """Write batches to a file for `load_batches`."""
    arrays = {f"{i}.{name}": value for i, batch in enumerate(batches) for name, value in vars(batch).items()
              if value is not None}
    np.savez(file, **arrays)


def load_batches(file: Path) -> list[Batch]:
    """Return the batches that `save_batches` wrote."""
    with np.load(file) as arrays:
        fields: dict[int, dict[str, np.ndarray]] = {}
        for key in arrays.files:
            number, name = key.split(".")
            fields.setdefault(int(number), {})[name] = arrays[key]
    return [Batch(**fields[i]) for i in sorted(fields)]


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


def peak_of_directory(directory: Path, gpus: list[int] | None, towers: int | None) -> int:
    """Train on the batches and with the settings in a directory.

    Returns:
        Peak memory in bytes: of the process, or of the GPU with the highest peak.

    Raises:
        SettingsError: the memory of the GPU is too small.
    """
    run = RunDirectory(directory)
    settings = run.settings()
    train = settings.train
    with tf.Graph().as_default():
        configure_graph(graph_settings(settings))
        batches = FixedBatches(load_batches(directory / BATCHES), STEPS * train.update_cycle)
        source = GeneralQueueInput(batches, feeders=1)
        model = run.load_model()
        set_model_optimizer(model, settings)
        config = TrainConfig(model=model, data=source, callbacks=[NaNGuard(check_steps=0)], monitors=[],
                             update_cycle=train.update_cycle, max_epoch=1)
        launch_train_with_config(config, SyncMultiGPUTrainer(
            gpus=gpus, towers=towers, update_cycle=train.update_cycle,
            trained=TrainedVariables(train.only, train.freeze), collectives=train.collectives))
    if gpus is None:
        return peak_memory()
    devices = [device.removeprefix("/").upper() for device in use_gpus(gpus)]
    return max(int(tf.config.experimental.get_memory_info(device)["peak"]) for device in devices)


def _end_with_parent() -> None:
    """End this process when its standard input is closed."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> int:
    """Run `python -m towernmt.run.memory_fit DIRECTORY --towers N`, and return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gpu", default=None)
    parser.add_argument("--towers", type=int, default=None)
    options = parser.parse_args()
    gpus = [int(gpu) for gpu in options.gpu.split(",")] if options.gpu else None
    try:
        peak = peak_of_directory(options.directory, gpus, options.towers)
    except (SettingsError, MemoryError, tf.errors.ResourceExhaustedError) as error:
        if not isinstance(error, SettingsError) or isinstance(error.__cause__, tf.errors.ResourceExhaustedError):
            return OUT_OF_MEMORY
        raise
    (options.directory / PEAK).write_text(json.dumps(peak), encoding="utf-8")
    return 0


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    sys.exit(main())
