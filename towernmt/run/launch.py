"""From settings to a finished run: what `towernmt train` and the examples call."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tensorpack.tfutils.sessinit import ChainInit, SessionInit
from tensorpack.train.interface import launch_train_with_config
from tensorpack.utils import logger

from towernmt.callbacks.checkpoints.best_checkpoints import BestCheckpoints
from towernmt.callbacks.checkpoints.saver import CheckpointSaver
from towernmt.callbacks.progress.histograms import Histograms
from towernmt.callbacks.progress.loss_scale_monitor import LossScaleMonitor
from towernmt.callbacks.progress.progress import Progress
from towernmt.callbacks.schedules.callbacks import make_schedule
from towernmt.callbacks.stopping.early_stopping import EarlyStopping
from towernmt.callbacks.stopping.limits import StopAfterMinutes, StopAtStep
from towernmt.callbacks.stopping.nan_guard import NaNGuard
from towernmt.callbacks.stopping.stop_signal import StopOnSignal
from towernmt.callbacks.validation.attention_pictures import AttentionPictures
from towernmt.callbacks.validation.bleu_validator import BleuValidator
from towernmt.callbacks.validation.metrics import mode_of
from towernmt.checkpoint.files import latest_checkpoint
from towernmt.checkpoint.held import HeldCheckpoint, again_if_gone
from towernmt.checkpoint.pretrained import PretrainedEmbeddings
from towernmt.checkpoint.provenance import check_vocabulary_of, fingerprints, versions
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.start_from import StartFrom, initial_checkpoint
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import GraphSettings, LossScaling, configure_graph
from towernmt.core.settings import check_ranges, flatten
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf
from towernmt.dataflow.order.streamed_corpus import StreamedCorpus
from towernmt.dataflow.order.training_data import TrainingData, make_batches
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.input_source import GeneralQueueInput, QueueMonitor
from towernmt.models.interface import ALIGNMENT, NMTModel, batch_signature
from towernmt.models.kernels.precision import is_slow_on_cpu
from towernmt.optim.freeze import TrainedVariables
from towernmt.run.directory import RunDirectory, differing_vocabulary
from towernmt.run.going_on import check_data, finished
from towernmt.run.introduction import Introduction
from towernmt.run.memory_fit import wants_search, with_fitting_batch, with_found_batch
from towernmt.run.rollback import with_rollbacks
from towernmt.run.run_log import hold_log
from towernmt.run.run_model import model_from_settings, settings_as_made, why_lost
from towernmt.run.settings import InitSettings, Settings, TrainSettings, model_with_sizes
from towernmt.train.config import TrainConfig
from towernmt.train.monitors import EventWriter, StatsWriter
from towernmt.train.trainer import SyncMultiGPUTrainer


@dataclass(frozen=True)
class Parts:
    """What a program of one's own puts in the place of the parts of `towernmt train`.

    Attributes:
        model: makes the tower function from the settings.
        trainer: called with gpus, towers, update_cycle and the other arguments of `SyncMultiGPUTrainer`, by name.
        source: called as `GeneralQueueInput`.
        callbacks: makes callbacks that stand before all others.
    """

    model: Callable[[Settings], Any] = model_from_settings
    trainer: Callable[..., SyncMultiGPUTrainer] = SyncMultiGPUTrainer
    source: Callable[..., GeneralQueueInput] = GeneralQueueInput
    callbacks: Callable[[], list[Any]] = list


def train(settings: Settings, data: TrainingData, logdir: str | Path, gpus: Sequence[int] | None = None,
          towers: int | None = None, parts: Parts | None = None) -> int:
    """Train a model on a corpus, from the last checkpoint of `logdir` if there is one.

    Args:
        settings: of the run; written to the run's directory.
        data: vocabularies, text or shards, and validation text; see `towernmt.dataflow.order.training_data`.
        gpus: one tower on each; None for towers on the CPU.
        towers: towers on the CPU, 1 if neither is given.
        parts: of one's own; None for the usual ones.
    Returns:
        the exit status: 0, or 128 + the number of the signal that stopped the run after a checkpoint.
    Raises:
        TowerNMTError: what the user can mend.
    """
    hold_log()
    check_ranges(settings)
    run = RunDirectory(logdir)
    run.check_place()
    with one_training(), run.writing("towernmt train"):
        return _train_alone(with_vocabulary_sizes(settings, data), data, run, gpus, towers, parts or Parts())


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
                 towers: int | None, parts: Parts) -> int:
    check_resumable(run, _recorded(settings, parts))
    check_vocabularies(run, data)
    check_data(run, data)
    if done := finished(run, settings.train):
        logger.info(done)
        return 0
    if wants_search(settings, run):
        if (parts.model, parts.trainer) != (model_from_settings, SyncMultiGPUTrainer):
            raise SettingsError(f"data.memory_gb={settings.data.memory_gb:g} cannot measure a model or trainer of "
                                "one's own: set data.batch_tokens, and data.memory_gb=0.")
        settings = with_fitting_batch(settings, data, gpus, towers)
    else:
        settings = with_found_batch(settings, run)
    towers = 1 if gpus is None and towers is None else towers
    return with_rollbacks(settings, run, lambda s: _train(s, data, run, gpus, towers, parts))


def _train(settings: Settings, data: TrainingData, run: RunDirectory, gpus: Sequence[int] | None,
           towers: int | None, parts: Parts) -> int:
    s = settings.train
    trainer = parts.trainer(gpus=gpus, towers=towers, update_cycle=s.update_cycle,
                            trained=TrainedVariables(s.only, s.freeze),
                            skip_out_of_memory=settings.recovery.skip_out_of_memory)
    with tf.Graph().as_default():
        configure_graph(graph_settings(settings))
        config, stop = make_config(settings, data, run, parts)
        trainer.model = config.model
        # Only now: settings that cannot work must not be the saved ones of the next start.
        recorded = settings if parts.model is model_from_settings else settings_as_made(settings, config.model)
        run.begin(recorded, data)
        if why_lost(recorded):
            logger.warning(why_lost(recorded))
        logger.info(f"Made with {', '.join(f'{name} {version}' for name, version in versions().items())}; data: "
                    f"{data.directory}", extra=DETAIL)
        if gpus is None and is_slow_on_cpu(s.precision):
            logger.info(f"train.precision={s.precision}: this processor multiplies float32 faster.")
        launch_train_with_config(config, trainer)
    return 128 + stop.received if stop.received else 0


def _recorded(settings: Settings, parts: Parts) -> Settings:
    """The settings as the run will be recorded: with the model that `parts` make, where it is one's own."""
    if parts.model is model_from_settings:
        return settings
    with tf.Graph().as_default():
        return settings_as_made(settings, parts.model(settings))


def graph_settings(settings: Settings) -> GraphSettings:
    """How the towers and the optimizer of a run are built."""
    s = settings.train
    return GraphSettings(settings.data.seed, s.precision, s.gradient_checkpointing, LossScaling(s.loss_scale),
                         s.deterministic)


def with_vocabulary_sizes(settings: Settings, data: TrainingData) -> Settings:
    """The settings with the sizes of the data's vocabularies in the model's group.

    Raises:
        SettingsError: the data have source factors, of which a model of one's own knows nothing.
    """
    if settings.model is None:
        return settings         # of a model that is not made from settings
    model = model_with_sizes(settings, data.source_vocabulary.size, data.target_vocabulary.size)
    factors = [vocabulary.size for vocabulary in factors_of(data.source_vocabulary)]
    if hasattr(model, "source_factor_vocab_sizes"):
        model = dataclasses.replace(model, source_factor_vocab_sizes=factors)
    elif factors:
        raise SettingsError(f"{data.directory} has {len(factors)} source factors, but architecture="
                            f"{settings.architecture} has no setting model.source_factor_vocab_sizes: prepare the data "
                            "without --source-factors.")
    if not data.shared_vocabulary and getattr(model, "tie_embeddings", None) == "all":
        logger.info("Source and target have vocabularies of their own: model.tie_embeddings=target.")
        model = dataclasses.replace(model, tie_embeddings="target")
    return dataclasses.replace(settings, model=model)


FIXED_GROUPS = ("model.",)
FREE_PARTS = ("dropout", "smoothing", "r_drop", "guided_alignment")     # of the model, but no part of its variables
FIXED_KEYS = ("optimizer.name", "optimizer.ema_decay", "optimizer.adafactor_momentum", "train.only", "train.freeze")


def check_resumable(run: RunDirectory, settings: Settings) -> None:
    """Refuse to go on with a run under another architecture, which its checkpoints would not fit.

    Raises:
        SettingsError: the first setting that differs.
    """
    if not run.exists() or not run.checkpoints.is_dir():
        return
    run.check_model(settings.architecture)
    old, new = flatten(run.settings_like(settings)), flatten(settings)
    for key in old:
        fixed = key.startswith(FIXED_GROUPS) or key in FIXED_KEYS
        if fixed and not any(part in key for part in FREE_PARTS) and old[key] != new.get(key):
            raise SettingsError(f"{run.path} holds a run with {key}={old[key]}, not {new.get(key)}: leave that setting "
                                "as it was to go on with it, or pass another --logdir to begin another.")


def check_vocabularies(run: RunDirectory, data: TrainingData) -> None:
    """Refuse to go on with a run on data of another vocabulary: its ids would be other words.

    Raises:
        SettingsError: the vocabularies differ.
    """
    if not run.exists() or not run.checkpoints.is_dir():
        return
    other = differing_vocabulary(run.vocabulary, data)
    if other:
        raise SettingsError(f"{run.path} was trained with another vocabulary than that of {data.directory} ({other} "
                            "differs): pass the --data of the run, prepare the new data with the run's vocabulary "
                            "files, or pass another --logdir to begin another.")


def first_values(settings: InitSettings, data: TrainingData) -> ChainInit | None:
    """What gives a new run its parameters: another run's, and vectors for its embeddings; None for neither.

    Raises:
        SettingsError: there is no such run, or its vocabulary is another: the ids of `data` would be other words.
    """
    files = {"source": settings.source_embeddings, "target": settings.target_embeddings}
    given = {side: file for side, file in files.items() if file}
    inits: list[SessionInit] = []
    if settings.checkpoint:
        inits.append(_start_from(settings, data))
    if given:
        vocabularies = {"source": data.source_vocabulary, "target": data.target_vocabulary}
        inits.append(PretrainedEmbeddings(given, vocabularies))
    return ChainInit(inits) if inits else None


def _start_from(settings: InitSettings, data: TrainingData) -> StartFrom:
    def opened() -> tuple[SavedRun, HeldCheckpoint]:
        run, prefix = initial_checkpoint(settings.checkpoint)
        return run, HeldCheckpoint(prefix)

    run, held = again_if_gone(opened)
    run.check_vocabulary()
    check_vocabulary_of(held, run.vocabulary)
    other = differing_vocabulary(run.vocabulary, data)
    if other:
        raise SettingsError(f"init.checkpoint={settings.checkpoint}: that run has another vocabulary than "
                            f"{data.directory} ({other} differs): prepare the data with the files in "
                            f"{run.vocabulary}, or pass text with --vocabulary {run.vocabulary}.")
    return StartFrom(held, settings.new, settings.left_out)


def make_config(settings: Settings, data: TrainingData, run: RunDirectory,
                parts: Parts) -> tuple[TrainConfig, StopOnSignal]:
    """tensorpack's configuration of a run, and the callback that tells whether a signal stopped it."""
    s = settings.data
    model = parts.model(settings)
    hand_optimizer(model, settings)
    check_recompute(model, settings.train)
    # Of prepared data the introduction says it; a stream tells of its epochs as it goes.
    report = logger.info if isinstance(data, StreamedCorpus) else partial(logger.info, extra=DETAIL)
    batches = make_batches(data, s, settings.train.epochs or None, report, _wants_alignments(model, settings))
    source = parts.source(batches, feeders=s.feeders, capacity=s.queue_capacity, name=str(data.directory))
    stop = StopOnSignal(interrupt=lambda: source.stop(None))
    first = first_values(settings.init, data) if latest_checkpoint(run.checkpoints) is None else None
    config = TrainConfig(
        model=model, data=source, update_cycle=settings.train.update_cycle,
        callbacks=[*parts.callbacks(), *make_callbacks(settings, data, run, model, source), stop],
        monitors=[EventWriter(run.log, flatten(settings)), StatsWriter(run.log)],
        **({"session_init": first} if first else {}))
    return config, stop


def hand_optimizer(model: Any, settings: Settings) -> None:
    """Give the model the run's optimizer, if it was made without one and does not define `optimizer()` itself."""
    takes_one = type(model).optimizer is NMTModel.optimizer
    if takes_one and model.make_optimizer is None and model.optimizer_settings is None:
        model.make_optimizer = partial(settings.optimizer.make, settings.train.clip_norm)


def check_recompute(model: Any, settings: TrainSettings) -> None:
    """Refuse `train.gradient_checkpointing` for a model on which it has no effect.

    Raises:
        SettingsError: the model has no layers that could be computed again.
    """
    if settings.gradient_checkpointing and not getattr(model, "recomputes", True):
        raise SettingsError(f"train.gradient_checkpointing=true would do nothing here: {type(model).__name__} has no "
                            "layers that are computed again, as the Transformer has; set it to false.")


def _wants_alignments(model: Any, settings: Settings) -> bool:
    """Whether the towers read them.

    Raises:
        SettingsError: they do not, but the settings ask for guided alignment.
    """
    wants = any(spec.name == ALIGNMENT for spec in model.inputs())
    weight = getattr(settings.model, "guided_alignment_weight", 0.0)
    if weight > 0 and not wants:
        raise SettingsError(f"model.guided_alignment_weight={weight:g} would do nothing here: the training towers of "
                            f"{type(model).__name__} do not read alignments; set it to 0.")
    return wants


def _takes_batches(model: Any) -> bool:
    """Whether the tower takes what `Batch` holds, and nothing else."""
    names = [spec.name for spec in model.inputs() if spec.name != ALIGNMENT]
    return names == [spec.name for spec in batch_signature()]


def make_validator(settings: Settings, data: TrainingData, model: Any) -> BleuValidator:
    """The validation of a run on the data's validation sets.

    Raises:
        SettingsError: `validation.metric` cannot be had.
    """
    s = settings.validation
    first, *others = [validation.first(s.sentences) for validation in data.validation_sets]
    return BleuValidator(
        model, first.source, first.references[0], data.source_vocabulary, data.target_vocabulary, s.steps,
        settings.search, loss=_takes_batches(model), every_minutes=s.minutes,
        more_references=first.references[1:], more_sets=others, metric=s.metric, metric_set=s.metric_set,
        seed=settings.data.seed, name=first.name)


def check_plateau(settings: Settings, scores: Sequence[str]) -> None:
    """Refuse a plateau schedule that would wait for a score of validation which never comes.

    Args:
        settings: of the run.
        scores: the names of those that come.
    Raises:
        SettingsError: `schedule.metric` is none of them.
    """
    metric = settings.schedule.metric
    if settings.schedule.name == "plateau" and metric.startswith("validation") and metric not in scores:
        raise SettingsError(f"schedule.metric={metric} is no score of this run's validation, and the learning rate "
                            f"would never fall: take {', '.join(scores)}." if scores else
                            f"schedule.name=plateau watches {metric}, but there is no validation in this run: give "
                            "validation text (and validation.steps), or take another schedule.")


def make_callbacks(settings: Settings, data: TrainingData, run: RunDirectory, model: Any,
                   source: GeneralQueueInput) -> list[Any]:
    """The callbacks of a run, in the order in which they act after a step."""
    s, log, kept = settings.train, settings.log, settings.checkpoint
    metric: str | None = None       # the scalar that the best checkpoints and early stopping go by
    scores: list[str] = []
    callbacks: list[Any] = [NaNGuard(), *([LossScaleMonitor()] if s.precision == "float16" else [])]
    if data.validation_sets and (settings.validation.steps or settings.validation.minutes):
        validator = make_validator(settings, data, model)
        callbacks.append(validator)
        metric, scores = validator.metric, validator.scalars
        if log.attention_pictures:
            callbacks.append(AttentionPictures(
                model, data.valid_source, data.valid_target, data.source_vocabulary, data.target_vocabulary,
                log.attention_pictures, settings.search.averaged))
    check_plateau(settings, scores)
    limit = StopAfterMinutes(s.minutes) if s.minutes else None
    callbacks.append(make_schedule(settings.schedule, settings.optimizer.learning_rate,
                                   getattr(settings.model, "hidden_size", 512), s.steps, limit))
    if metric and s.stop_patience:
        callbacks.append(EarlyStopping(metric, s.stop_patience, mode=mode_of(metric)))
    if metric and kept.keep_best:
        callbacks.append(BestCheckpoints(run.best, kept.keep_best, metric, mode_of(metric)))
    saver = CheckpointSaver(run.checkpoints, kept.steps, kept.minutes, kept.keep, source, fingerprints(data))
    if log.histograms:
        callbacks.append(Histograms(log.histograms))
    callbacks += [Introduction(settings, data, run, metric is not None), saver, Progress(log.steps),
                  QueueMonitor(source, log.steps)]
    if s.steps:
        callbacks.append(StopAtStep(s.steps))
    if limit is not None:
        callbacks.append(limit)
    return callbacks
