"""What to train with what: tensorpack's `TrainConfig`, which resumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorpack.callbacks import MergeAllSummaries, MovingAverageSummary, RunUpdateOps, ScalarPrinter
from tensorpack.train.config import TrainConfig as TensorpackTrainConfig
from tensorpack.utils import logger

from towernmt.callbacks.checkpoints.saver import CheckpointSaver
from towernmt.callbacks.reporting.progress import Progress
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.core.session import SessionCreator
from towernmt.train.monitors import EventWriter, StatsWriter

NO_LIMIT = 99999
"""tensorpack's number of epochs for a training that something else ends."""
STEPS_PER_EPOCH = 1000
"""What is called an epoch in tensorpack's log where the length of the data's epochs is not known."""


class TrainConfig(TensorpackTrainConfig):
    """tensorpack's `TrainConfig`, with a run that goes on from its last checkpoint.

    If `callbacks` hold a `CheckpointSaver` whose directory has a checkpoint, then variables, data position
    and the memory of the callbacks come from there.

    Args:
        model: a tower function, such as `Transformer(settings)`.
        data: an `InputSource`, such as `GeneralQueueInput(batches)`.
        callbacks: in the order in which they run after each step.
        steps_per_epoch: updates an epoch; None asks `data` for its batches (divided by the update cycle): for their
            exact number if `max_epoch` is given, since training ends by it; else for an estimate if `data` has one
            (`estimated_size`), so that the corpus is not read before the first step. Where the number is not known, as
            of a stream, tensorpack's epoch is `STEPS_PER_EPOCH` updates.
        update_cycle: batches an update, as the trainer has it.
        max_epoch: the number of epochs.
        others: as tensorpack's; `monitors` are by default ours, in the directory of the log (`RunDirectory.begin`).
    """

    def __init__(self, model: Any, data: Any, callbacks: Sequence[Any] = (), steps_per_epoch: int | None = None,
                 update_cycle: int = 1, max_epoch: int = NO_LIMIT, **others: Any) -> None:
        callbacks = list(callbacks)
        if steps_per_epoch is None:
            steps_per_epoch = _steps_per_epoch(data, update_cycle, exact=max_epoch < NO_LIMIT)
        others.setdefault("extra_callbacks", [MovingAverageSummary(), MergeAllSummaries(), RunUpdateOps()])
        others.setdefault("session_creator", SessionCreator())
        others.setdefault("monitors", _monitors(callbacks))
        checkpoint = None
        for saver in [c for c in callbacks if isinstance(c, CheckpointSaver)][:1]:
            saver.data = saver.data or data
            checkpoint = saver.latest()
            if checkpoint is not None:
                saver.restore(checkpoint, callbacks)
        if checkpoint is not None and "session_init" not in others:
            logger.info(f"Resuming from {checkpoint}.")
            others["session_init"] = RestoreCheckpoint(checkpoint / "model")
            others["starting_epoch"] = _step_of(checkpoint) // steps_per_epoch + 1
        super().__init__(model=model, data=data, callbacks=callbacks, steps_per_epoch=steps_per_epoch,
                         max_epoch=max_epoch, **others)


def _monitors(callbacks: Sequence[Any]) -> list[Any]:
    """Ours, in the directory of the log if one is set, and tensorpack's printer where no `Progress` shows scalars."""
    directory = logger.get_logger_dir()
    writers = [EventWriter(directory), StatsWriter(directory)] if directory else []
    return writers + ([] if any(isinstance(c, Progress) for c in callbacks) else [ScalarPrinter()])


def _steps_per_epoch(data: Any, update_cycle: int, exact: bool) -> int:
    size = data.size if exact else getattr(data, "estimated_size", data.size)
    try:
        return max(1, int(size()) // update_cycle)
    except NotImplementedError:  # tensorpack's way to say that it is not known
        return STEPS_PER_EPOCH


def _step_of(checkpoint: Any) -> int:
    return int(checkpoint.name.removeprefix("step-"))
