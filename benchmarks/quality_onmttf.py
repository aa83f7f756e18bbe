"""Run OpenNMT-tf's program with the clock of `quality_clock.py`.

`quality.py` starts it with OpenNMT-tf's Python:

    python quality_onmttf.py train FOLDER MINUTES EVERY onmt-main's arguments ...
    python quality_onmttf.py average CHECKPOINT,CHECKPOINT,... onmt-main's arguments ...

The clock runs after each update; OpenNMT-tf saves the checkpoints. `average` calls OpenNMT-tf's `average_checkpoints`
on the named checkpoints instead of the last ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from quality_clock import Clock


def train(folder: Path, minutes: float, every: float, arguments: list[str]) -> None:
    """Run OpenNMT-tf's training program with `arguments` for `minutes` of training."""
    training: Any = import_module("opennmt.training")
    updates_of, reset = training.Trainer._steps, training.TrainingStats.reset_throughput
    clock, tokens = Clock(folder, minutes, every), 0

    def counted(stats: Any) -> None:
        nonlocal tokens
        tokens += target_tokens(stats)
        reset(stats)

    def until_the_end(trainer: Any, *positional: Any, **named: Any) -> Iterator[Any]:
        def save() -> str:
            trainer._save_checkpoint(updates)
            return str(Path(trainer._checkpoint.model_dir) / f"ckpt-{updates}")

        for loss in updates_of(trainer, *positional, **named):
            yield loss
            updates = int(trainer._optimizer.iterations)
            if clock.tick(updates, tokens + target_tokens(trainer._training_stats), save):
                return

    training.TrainingStats.reset_throughput = counted
    training.Trainer._steps = until_the_end
    clock.end_on_signals()
    onmt_main(arguments)


def target_tokens(stats: Any) -> int:
    """Return the target tokens that OpenNMT-tf counted since its last log line."""
    return int(stats._get_words_counters().get("target", 0))


def average(checkpoints: list[str], arguments: list[str]) -> None:
    """Average the named checkpoints."""
    runner: Any = import_module("opennmt.runner").Runner
    mean = runner.average_checkpoints
    runner.average_checkpoints = lambda self, output, max_count: mean(self, output, max_count, checkpoints)
    onmt_main(arguments)


def onmt_main(arguments: list[str]) -> None:
    """Run OpenNMT-tf's main program in this process."""
    sys.argv = ["onmt-main", *arguments]
    import_module("opennmt.bin.main").main()


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
    else:
        average(sys.argv[2].split(","), sys.argv[3:])
