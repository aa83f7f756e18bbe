"""Run fairseq's training program with the clock of `quality_clock.py`.

`quality.py` starts it with fairseq's Python:

    python quality_fairseq.py FOLDER MINUTES EVERY fairseq-train's arguments ...

After each update, the clock replaces `validate_and_save`; fairseq saves the checkpoints.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from quality_clock import Clock


def main(folder: Path, minutes: float, every: float, arguments: list[str]) -> None:
    """Run fairseq's training program with `arguments` for `minutes` of training."""
    train: Any = import_module("fairseq_cli.train")
    trainer_class: Any = import_module("fairseq.trainer").Trainer
    make_update = trainer_class.train_step
    clock, tokens = Clock(folder, minutes, every), 0

    def counted(trainer: Any, samples: list[Any], *positional: Any, **named: Any) -> Any:
        nonlocal tokens
        tokens += sum(int(sample["ntokens"]) for sample in samples if sample)
        return make_update(trainer, samples, *positional, **named)

    def ask_clock(cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *_: Any) -> tuple[list[None], bool]:
        updates = int(trainer.get_num_updates())

        def save() -> str:
            path = str(folder / f"checkpoint-{updates}.pt")
            trainer.consolidate_optimizer()
            trainer.save_checkpoint(path, {"train_iterator": epoch_itr.state_dict(), "val_loss": None})
            return path

        return [None], clock.tick(updates, tokens, save)

    trainer_class.train_step = counted
    train.validate_and_save = ask_clock
    clock.end_on_signals()
    sys.argv = ["fairseq-train", *arguments]
    train.cli_main()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
