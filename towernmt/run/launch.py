"""From settings to a finished run: what `towernmt train` and the examples call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorpack.train.interface import launch_train_with_config
from tensorpack.utils import logger

from towernmt.checkpoint.files import latest_checkpoint
from towernmt.checkpoint.provenance import fingerprints, versions
from towernmt.cluster.all_reduce import AllReduce
from towernmt.cluster.code import code_fingerprint
from towernmt.cluster.joined import joined_world, refuse_differences
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.graph_state import configure_graph
from towernmt.core.settings import check_ranges, flatten
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf
from towernmt.core.world import present_world
from towernmt.dataflow.order.training_data import TrainingData
from towernmt.input_source import GeneralQueueInput
from towernmt.models.kernels.precision import is_slow_on_cpu
from towernmt.optim.freeze import TrainedVariables
from towernmt.run.assemble import graph_settings, make_config, with_vocabulary_sizes
from towernmt.run.averaged_end import average_if_due, check_average, set_later_average_aside
from towernmt.run.components import Components
from towernmt.run.directory import RunDirectory
from towernmt.run.memory.fit import wants_search, with_fitting_batch, with_found_batch
from towernmt.run.resume import check_data, check_resumable, check_vocabularies, finished
from towernmt.run.rollback import recorded_rollbacks, with_rollbacks
from towernmt.run.run_log import hold_log
from towernmt.run.run_model import model_from_settings, settings_as_made, why_lost
from towernmt.run.settings import Settings, TrainSettings
from towernmt.train.trainer import SyncMultiGPUTrainer


def train(settings: Settings, data: TrainingData, logdir: str | Path, gpus: Sequence[int] | None = None,
          towers: int | None = None, parts: Components | None = None, *,
          model: Callable[[Settings], Any] = model_from_settings,
          trainer: Callable[..., SyncMultiGPUTrainer] = SyncMultiGPUTrainer,
          source: Callable[..., GeneralQueueInput] = GeneralQueueInput,
          callbacks_before: Callable[[], list[Any]] = list, callbacks_after: Callable[[], list[Any]] = list) -> int:
    """Train a model on a corpus, from the last checkpoint of `logdir` if there is one.

    Args:
        settings: of the run; written to the run's directory.
        data: vocabularies, text or shards, and validation text; see `towernmt.dataflow.order.training_data`.
        gpus: one tower on each; None for towers on the CPU.
        towers: towers on the CPU, 1 if neither is given.
        parts: what `Parts` makes; the former way to give the arguments that follow.
        model: makes the tower function from the settings.
        trainer: called with gpus, towers, update_cycle and the other arguments of `SyncMultiGPUTrainer`, by name.
        source: called as `GeneralQueueInput`.
        callbacks_before: makes callbacks that act before the usual ones after each step.
        callbacks_after: makes callbacks that act behind validation, schedule, early stopping and the best checkpoints,
            whose scores they see at the same step; and before the checkpoint is saved, which has what they remember.
    Returns:
        the exit status: 0, or 128 + the number of the signal that stopped the run after a checkpoint.
    Raises:
        TowerNMTError: what the user can mend.
    """
    hold_log()
    check_ranges(settings)
    run = RunDirectory(logdir)
    run.check_place()
    components = parts or Components(model, trainer, source, callbacks_before, callbacks_after)
    world = joined_world(settings.train.worker_timeout, cpu_towers=towers or 1)
    with one_training():
        with world, run.writing("towernmt train"):
            is_chief = present_world().is_chief
            settings = with_vocabulary_sizes(settings, data)
            status = _train_alone(settings, data, run, gpus, towers, components)
        if is_chief and status == 0:    # the other processes have gone
            average_if_due(settings, data, run, components, gpus)
        return status


_TRAINING = threading.Lock()


@contextmanager
def one_training() -> Iterator[None]:
    """Refuse a second training in this process: tensorpack has one tower context and one log a process.

    Raises:
        SettingsError: another thread trains.
    """
    if not _TRAINING.acquire(blocking=False):
        raise SettingsError("This process is training already, and two trainings need two processes: start the other "
                            "one when this one has ended, or in a process of its own.")
    try:
        yield
    finally:
        _TRAINING.release()


def _train_alone(settings: Settings, data: TrainingData, run: RunDirectory, gpus: Sequence[int] | None,
                 towers: int | None, components: Components) -> int:
    if present_world().processes > 1:
        refuse_differences(_facts(settings, data, run, len(gpus) if gpus is not None else towers or 1))
    check_resumable(run, _settings_to_record(settings, components))
    check_vocabularies(run, data)
    check_data(run, data)
    check_average(settings, data)
    if done := finished(run, settings.train):
        logger.info(done)
        return 0
    if wants_search(settings, run):
        if present_world().processes > 1:
            raise SettingsError(f"data.memory_gb={settings.data.memory_gb:g} measures in one process: find the batch "
                                "with one worker first, or set data.batch_tokens, and data.memory_gb=0.")
        if (components.model, components.trainer) != (model_from_settings, SyncMultiGPUTrainer):
            raise SettingsError(f"data.memory_gb={settings.data.memory_gb:g} cannot measure a model or trainer of "
                                "one's own: set data.batch_tokens, and data.memory_gb=0.")
        settings = with_fitting_batch(settings, data, gpus, towers)
    else:
        settings = with_found_batch(settings, run)
    towers = 1 if gpus is None and towers is None else towers
    return with_rollbacks(settings, run, lambda s: _train(s, settings, data, run, gpus, towers, components))


def _train(settings: Settings, saved: Settings, data: TrainingData, run: RunDirectory, gpus: Sequence[int] | None,
           towers: int | None, components: Components) -> int:
    """Train until the end, or until training diverges.

    Args:
        saved: the settings that the run is saved with; those it is trained with may have a lower rate, after rollbacks.
    """
    s = settings.train
    trainer = components.trainer(gpus=gpus, towers=towers, update_cycle=s.update_cycle,
                                 trained=TrainedVariables(s.only, s.freeze),
                                 skip_out_of_memory=settings.recovery.skip_out_of_memory,
                                 **_over_processes(s))
    with tf.Graph().as_default():
        configure_graph(graph_settings(settings))
        config, stop = make_config(settings, data, run, components)
        trainer.model = config.model
        present_world().agree(True)     # by now all have read what the chief writes from here on
        # Only now: settings that cannot work must not be the saved ones of the next start.
        recorded = saved if components.model is model_from_settings else settings_as_made(saved, config.model)
        run.begin(recorded, data)
        if present_world().is_chief:
            set_later_average_aside(run)
        if why_lost(recorded):
            logger.warning(why_lost(recorded))
        logger.info(f"Made with {', '.join(f'{name} {version}' for name, version in versions().items())}; data: "
                    f"{data.directory}", extra=DETAIL)
        if gpus is None and is_slow_on_cpu(s.precision):
            logger.info(f"train.precision={s.precision}: this processor multiplies float32 faster.")
        try:
            launch_train_with_config(config, trainer)
        except DivergenceError as error:
            error.signal = stop.received
            raise
    return 128 + stop.received if stop.received else 0


def _over_processes(settings: TrainSettings) -> dict[str, Any]:
    """What a trainer needs in a world of several processes."""
    return {"reducer": AllReduce(settings.wire, settings.transport)} if present_world().processes > 1 else {}


def _facts(settings: Settings, data: TrainingData, run: RunDirectory, towers: int) -> dict[str, Any]:
    """What must be the same in every process, else they would train models that differ."""
    last = latest_checkpoint(run.checkpoints)
    return {**flatten(settings), **fingerprints(data), **versions(), "the code of towernmt": code_fingerprint(),
            "the number of towers": towers, "the checkpoint": "(none)" if last is None else last.name,
            "the record of rollbacks": recorded_rollbacks(run)}


def _settings_to_record(settings: Settings, components: Components) -> Settings:
    """The settings that the run will be saved with: of the model that is made, where it is one's own."""
    if components.model is model_from_settings:
        return settings
    with tf.Graph().as_default():
        return settings_as_made(settings, components.model(settings))
