"""`train`: from settings to a finished run, as `towernmt train` and the examples call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorpack.train.interface import launch_train_with_config
from tensorpack.utils import logger

from towernmt.checkpoint.checkpoint_files import latest_checkpoint
from towernmt.checkpoint.records import fingerprints, versions
from towernmt.cluster.all_reduce import AllReduce
from towernmt.cluster.joining import code_fingerprint, joined_world, refuse_differences
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.settings import check_ranges, flatten
from towernmt.core.terminal_log import DETAIL
from towernmt.core.tf_compat import tf
from towernmt.core.world import current_world
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.input_source import GeneralQueueInput
from towernmt.models.kernels import is_slow_on_cpu
from towernmt.optim.optimizer import TrainedVariables
from towernmt.run.assemble import Components, check_tracker, make_config, patience_scalar, with_vocabulary_sizes
from towernmt.run.averaged_end import average_if_due, check_average, set_later_average_aside
from towernmt.run.directory import RunDirectory, model_from_settings, settings_as_made, why_model_not_found
from towernmt.run.introduction import AutomaticSettingsRecord, SettingsRecord
from towernmt.run.memory_fit import wants_search, with_fitting_batch, with_found_batch
from towernmt.run.resume import check_data, check_memory_limit, check_resumable, check_run_vocabulary, why_finished
from towernmt.run.rollbacks import recorded_rollbacks, with_rollbacks
from towernmt.run.run_log import hold_log
from towernmt.run.run_settings import Settings, TrainSettings
from towernmt.train.trainer import SyncMultiGPUTrainer
from towernmt.train.training_towers import tower_devices

if TYPE_CHECKING:
    from towernmt.run.resolve import ResolvedSettings

@hold_log()
def train(settings: Settings, data: TrainingData, logdir: str | Path, gpus: Sequence[int] | None = None,
          towers: int | None = None, *,
          model: Callable[[Settings], Any] = model_from_settings,
          trainer: Callable[..., SyncMultiGPUTrainer] = SyncMultiGPUTrainer,
          source: Callable[..., GeneralQueueInput] = GeneralQueueInput,
          callbacks_before: Callable[[], list[Any]] = list, callbacks_after: Callable[[], list[Any]] = list) -> int:
    """Train a model on a corpus, from the last checkpoint of `logdir` if it contains one.

    Args:
        settings: settings of the run, which are written to its directory.
        data: vocabularies, text or shards, and validation text; see `towernmt.dataflow.batches.training_data`.
        logdir: directory of the run.
        gpus: numbers of the GPUs, one tower on each; None for towers on the CPU.
        towers: number of towers on the CPU, 1 by default.
        model: makes the tower function from the settings.
        trainer: makes the trainer from gpus, towers, update_cycle and the other arguments of `SyncMultiGPUTrainer`,
            which are passed by name.
        source: makes the `InputSource` from the arguments of `GeneralQueueInput`.
        callbacks_before: makes custom callbacks that act before the built-in ones after each step.
        callbacks_after: makes custom callbacks that act after validation, schedule, early stopping and best
            checkpoints, and before the checkpoint is saved. They see the scores of the same step, and the checkpoint
            contains their state.

    Returns:
        The exit status: 0, or 128 + the number of the signal that stopped the run after a checkpoint.

    Raises:
        TowerNMTError: an error that the user can fix.
    """
    if gpus is not None or towers is not None:
        tower_devices(gpus, towers)     # before data are read and servers are started
    check_ranges(settings)
    check_tracker(settings)     # before the batch size is searched, which takes minutes
    run = RunDirectory(logdir)
    run.refuse_prepared_data()
    components = Components(model, trainer, source, callbacks_before, callbacks_after)
    world = joined_world(settings.train.worker_timeout, cpu_towers=(towers or 1) if gpus is None else 0)
    with one_training():
        try:
            with world, run.writing("towernmt train"):
                is_chief = current_world().is_chief
                settings = with_vocabulary_sizes(settings, data)
                status = _check_and_train(settings, data, run, gpus, towers, components)
            if is_chief and status == 0:    # the other processes have ended
                average_if_due(settings, data, run, components, gpus)
            return status
        finally:
            if logger.LOG_DIR == str(run.log):
                logger.LOG_DIR = None   # a later training by hand would replace the statistics of this run


@hold_log()
def train_resolved_settings(resolved: ResolvedSettings, data: TrainingData, logdir: str | Path,
                            gpus: Sequence[int] | None = None) -> int:
    """Log the notes of resolved settings, train with the settings, and record the automatic ones; see `train`.

    Args:
        resolved: settings of the run.
        data: training data.
        logdir: directory of the run.
        gpus: numbers of the GPUs; None for the CPU.

    Returns:
        The exit status.

    Raises:
        TowerNMTError: an error that the user can fix.
    """
    for note in resolved.notes:
        logger.info(note)
    automatic = resolved.automatic
    return train(resolved.settings, data, logdir, gpus, resolved.towers,
                 callbacks_before=lambda: [] if automatic is None else [
                     AutomaticSettingsRecord(automatic, Path(logdir), resolved.towers)])


_TRAINING = threading.Lock()


@contextmanager
def one_training() -> Iterator[None]:
    """Refuse a second training in this process, because tensorpack has one tower context and one log per process.

    Raises:
        SettingsError: another thread trains.
    """
    if not _TRAINING.acquire(blocking=False):
        raise SettingsError("This process already trains a model, and two trainings need two processes: wait for the "
                            "end of the first training, or start the second one in a separate process.")
    try:
        yield
    finally:
        _TRAINING.release()


def _check_and_train(settings: Settings, data: TrainingData, run: RunDirectory, gpus: Sequence[int] | None,
                     towers: int | None, components: Components) -> int:
    """Check that the run can begin or resume, choose its batch size, and train until its end."""
    if current_world().processes > 1:
        refuse_differences(_facts(settings, data, run, len(gpus) if gpus is not None else towers or 1))
    check_resumable(run, _settings_to_record(settings, components))
    check_run_vocabulary(run, data)
    check_data(run, data)
    check_average(settings, data)
    if reason := why_finished(run, settings.train, patience_scalar(settings, data, run)):
        logger.info(reason)
        return 0
    if wants_search(settings, run):
        check_memory_limit(run, settings)
        if current_world().processes > 1:
            raise SettingsError(f"data.memory_gb={settings.data.memory_gb:g} needs a single process: start with one "
                                "worker, or set data.batch_tokens and data.memory_gb=0.")
        if (components.model, components.trainer) != (model_from_settings, SyncMultiGPUTrainer):
            raise SettingsError(f"data.memory_gb={settings.data.memory_gb:g} cannot measure a custom model or "
                                "trainer: set data.batch_tokens and data.memory_gb=0.")
        settings = with_fitting_batch(settings, data, gpus, towers)
    else:
        settings = with_found_batch(settings, run)
    towers = 1 if gpus is None and towers is None else towers
    return with_rollbacks(settings, run, lambda s: _train(s, settings, data, run, gpus, towers, components))


def _train(settings: Settings, saved: Settings, data: TrainingData, run: RunDirectory, gpus: Sequence[int] | None,
           towers: int | None, components: Components) -> int:
    """Train until the end, or until training diverges.

    Args:
        settings: settings with which the run trains; after rollbacks, with a lower learning rate.
        saved: settings that are written to the directory of the run.
        data: training data.
        run: directory of the run.
        gpus: numbers of the GPUs; None for the CPU.
        towers: number of towers on the CPU.
        components: the run's model, trainer, input and callbacks.
    """
    train_settings = settings.train
    trainer = components.trainer(gpus=gpus, towers=towers, update_cycle=train_settings.update_cycle,
                                 trained=TrainedVariables(train_settings.only, train_settings.freeze),
                                 skip_out_of_memory=settings.recovery.skip_out_of_memory,
                                 **_over_processes(train_settings), **_between_gpus(train_settings))
    with tf.Graph().as_default():
        config, stop = make_config(settings, data, run, components)
        trainer.model = config.model
        current_world().agree(True)     # the chief replaces files below that all processes have now read
        recorded = saved if components.model is model_from_settings else settings_as_made(saved, config.model)
        config.callbacks.insert(0, SettingsRecord(recorded, data, run))
        run.start_log(data)
        if current_world().is_chief:
            set_later_average_aside(run)
        if problem := why_model_not_found(recorded):
            logger.warning(problem)
        logger.info(f"Made with {', '.join(f'{name} {version}' for name, version in versions().items())}; data: "
                    f"{data.directory}", extra=DETAIL)
        if gpus is None and is_slow_on_cpu(train_settings.precision):
            logger.info(f"train.precision={train_settings.precision}: float32 is faster on this processor.")
        try:
            launch_train_with_config(config, trainer)
        except DivergenceError as error:
            error.signal = stop.received
            raise
    # A signal to one process ends all of them, with the same status.
    received = current_world().agree(stop.received or 0)
    return 128 + received if received else 0


def _over_processes(settings: TrainSettings) -> dict[str, Any]:
    """Return the trainer's argument for several processes; nothing for a single process."""
    return {"reducer": AllReduce(settings.wire, settings.transport)} if current_world().processes > 1 else {}


def _between_gpus(settings: TrainSettings) -> dict[str, Any]:
    """Return the trainer's argument for the collectives of several GPUs; nothing for the default."""
    return {} if settings.collectives == "auto" else {"collectives": settings.collectives}


def _facts(settings: Settings, data: TrainingData, run: RunDirectory, towers: int) -> dict[str, Any]:
    """Return the facts that must be equal in all processes, which would train different models otherwise."""
    last = latest_checkpoint(run.checkpoints)
    return {**flatten(settings), **fingerprints(data), **versions(), "the code of towernmt": code_fingerprint(),
            "the number of towers": towers, "the checkpoint": "(none)" if last is None else last.name,
            "the record of rollbacks": recorded_rollbacks(run)}


def _settings_to_record(settings: Settings, components: Components) -> Settings:
    """Return the settings to save; a custom model has its own settings."""
    if components.model is model_from_settings:
        return settings
    with tf.Graph().as_default():
        return settings_as_made(settings, components.model(settings))
