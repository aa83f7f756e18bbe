"""`TrainConfig`: tensorpack's training configuration, extended to resume from the last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorpack.callbacks import MovingAverageSummary, RunUpdateOps, ScalarPrinter
from tensorpack.callbacks.summary import MergeAllSummaries_RunWithOp
from tensorpack.input_source import InputSource
from tensorpack.train.config import TrainConfig as TensorpackTrainConfig
from tensorpack.utils import logger

from towernmt.callbacks.hooks import refuse_unusable_callbacks
from towernmt.callbacks.progress import Progress
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.checkpoint.checkpoint_files import step_of
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.core.errors import SettingsError
from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf1
from towernmt.input_source.queue_input import innermost
from towernmt.train.monitors import EventWriter, StatsWriter

NO_LIMIT = 99999
"""tensorpack's number of epochs for training that is ended by another limit."""
STEPS_PER_EPOCH = 1000
"""Updates in an epoch of tensorpack's log if the length of the data is not known."""


class TrainConfig(TensorpackTrainConfig):
    """tensorpack's `TrainConfig`, for a run that resumes from its last checkpoint.

    If `callbacks` contain a `CheckpointSaver` whose directory has a checkpoint, the variables, the data position and
    the state of the callbacks are restored from it, and `session_init`, which initialises a new run, has no effect. If
    there are several savers, the latest checkpoint of all counts.

    Args:
        model: a tower function, such as `Transformer(settings)`.
        data: an `InputSource`, such as `GeneralQueueInput(batches)`.
        callbacks: the callbacks, in the order in which they run after each step.
        steps_per_epoch: updates per epoch. None: the number of batches of `data`, divided by the update cycle. That
            number is exact if `max_epoch` is set, because training ends by it. Otherwise it is an estimate if `data`
            has `estimated_size`, so that the corpus is not read before the first step. If the number is not known, as
            of a stream, it is `STEPS_PER_EPOCH`.
        update_cycle: batches per update; pass the same number to the trainer.
        max_epoch: the number of epochs.
        summary_steps: interval in updates at which the model's summaries are recorded, in addition to the end of each
            epoch; 0: at the end of epochs only. They are computed within the train step, from its batch.
        options: other arguments of tensorpack's `TrainConfig`. The default of `monitors` is an `EventWriter` and a
            `StatsWriter` in the log directory.

    Raises:
        SettingsError: `data` is not an `InputSource`, or a callback does not work with TensorFlow 2.
        CheckpointError: the checkpoint is damaged, or does not belong to this run.
    """

    def __init__(self, model: Any, data: Any, callbacks: Sequence[Any] = (), steps_per_epoch: int | None = None,
                 update_cycle: int = 1, max_epoch: int = NO_LIMIT, summary_steps: int = 0, **options: Any) -> None:
        if not isinstance(data, InputSource) and "dataflow" not in options:
            raise SettingsError(f"TrainConfig(data=...) got a {type(data).__name__}, which is not an InputSource: pass "
                                "GeneralQueueInput(batches), which also accepts a tensorpack DataFlow.")
        callbacks = list(callbacks)
        refuse_unusable_callbacks(callbacks)
        if steps_per_epoch is None:
            steps_per_epoch = _steps_per_epoch(data, update_cycle, exact=max_epoch < NO_LIMIT)
        summaries = MergedSummaries(summary_steps, tf1.GraphKeys.SUMMARIES)
        options.setdefault("extra_callbacks", [MovingAverageSummary(), summaries, RunUpdateOps()])
        options.setdefault("session_creator", SessionCreator())
        options.setdefault("monitors", _monitors(callbacks))
        saver, checkpoint = _latest_checkpoint([c for c in callbacks if isinstance(c, CheckpointSaver)], data)
        if saver is not None and checkpoint is not None:
            saver.restore(checkpoint, [*callbacks, *(options["extra_callbacks"] or ())])
            ignored = "" if options.get("session_init") is None else ", so session_init has no effect"
            logger.info(f"Resuming from {checkpoint}{ignored}.")
            options["session_init"] = RestoreCheckpoint(checkpoint / "model")
            options["starting_epoch"] = step_of(checkpoint) // steps_per_epoch + 1
        super().__init__(model=model, data=data, callbacks=callbacks, steps_per_epoch=steps_per_epoch,
                         max_epoch=max_epoch, **options)


class MergedSummaries(MergeAllSummaries_RunWithOp):
    """tensorpack's `MergeAllSummaries`, with a period that counts the updates of the run, resumes included."""

    def _need_run(self) -> bool:
        if self.local_step == self.trainer.steps_per_epoch - 1:
            return True
        return bool(self._period) and (self.trainer.loop.global_step + 1) % self._period == 0


def _latest_checkpoint(savers: Sequence[CheckpointSaver], data: Any
                       ) -> tuple[CheckpointSaver, Path] | tuple[None, None]:
    """Return the checkpoint of the latest step among those of all savers, with its saver; set their data."""
    for saver in savers:
        saver.data = saver.data or innermost(data)
    found = [(saver, checkpoint) for saver in savers if (checkpoint := saver.latest()) is not None]
    return max(found, key=lambda pair: step_of(pair[1]), default=(None, None))


def _monitors(callbacks: Sequence[Any]) -> list[Any]:
    """Return writers into the log directory if it is set, and tensorpack's printer unless `Progress` shows scalars."""
    directory = logger.get_logger_dir()
    writers = [EventWriter(directory), StatsWriter(directory)] if directory else []
    return writers + ([] if any(isinstance(c, Progress) for c in callbacks) else [ScalarPrinter()])


def _steps_per_epoch(data: Any, update_cycle: int, exact: bool) -> int:
    size = data.size if exact else getattr(data, "estimated_size", data.size)
    try:
        return max(1, int(size()) // update_cycle)
    except NotImplementedError:  # raised by tensorpack if the size is not known
        return STEPS_PER_EPOCH
