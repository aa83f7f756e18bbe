"""Build tensorpack's configuration of a run from its settings: graph, model, input, callbacks, monitors.

`Components` are a custom model, trainer, input and callbacks, which replace those of the settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.callbacks.monitor import MonitorBase
from tensorpack.utils import logger

from towernmt.callbacks.attention_pictures import AttentionPictures
from towernmt.callbacks.best_checkpoints import BestCheckpoints
from towernmt.callbacks.bleu_validator import BleuValidator, fingerprints_of_sets, is_of_other_text
from towernmt.callbacks.learning_rate import make_schedule
from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.callbacks.progress import Progress
from towernmt.callbacks.saver import CheckpointSaver, restore_callback
from towernmt.callbacks.stateful import ScoreWatcher
from towernmt.callbacks.stop_on_signal import StopOnSignal
from towernmt.callbacks.stopping import EarlyStopping, EndOfEpochs, StopAfterMinutes, StopAtStep
from towernmt.callbacks.summaries import Histograms, LossScaleMonitor
from towernmt.callbacks.validation_metrics import MEANS_OF_TRAINING, METRICS, mode_of
from towernmt.checkpoint.checkpoint_files import STATE, CheckpointState, latest_checkpoint, read_state
from towernmt.checkpoint.records import fingerprints
from towernmt.core.errors import ALMOST_EQUAL, SettingsError, nearest
from towernmt.core.graph_state import GraphSettings, LossScaling, configure_graph
from towernmt.core.settings import flatten
from towernmt.core.terminal_log import DETAIL
from towernmt.dataflow.batches.mixed_data import has_only_general_sets
from towernmt.dataflow.batches.training_data import StreamedCorpus, TrainingData, make_batches
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.dataflow.vocabulary.vocabulary_files import same_pieces
from towernmt.input_source import GeneralQueueInput, QueueMonitor
from towernmt.models.interface import ALIGNMENT, NMTModel, batch_signature
from towernmt.optim.optimizer import make_optimizer
from towernmt.run.directory import RunDirectory, model_from_settings
from towernmt.run.initial_values import initial_values
from towernmt.run.introduction import Introduction
from towernmt.run.resume import trained_seconds
from towernmt.run.run_settings import Settings, TrainSettings, width_of_model
from towernmt.train.config import TrainConfig
from towernmt.train.monitors import EventWriter, StatsWriter
from towernmt.train.tracker_monitor import TrackerMonitor, check_library, make_tracker, name_for_tracker
from towernmt.train.trainer import SyncMultiGPUTrainer


@dataclass(frozen=True)
class Components:
    """Functions that make a run's model, trainer, input and callbacks; `towernmt.run.train` has their arguments."""

    model: Callable[[Settings], Any] = model_from_settings
    trainer: Callable[..., SyncMultiGPUTrainer] = SyncMultiGPUTrainer
    source: Callable[..., GeneralQueueInput] = GeneralQueueInput
    callbacks_before: Callable[[], list[Any]] = list
    callbacks_after: Callable[[], list[Any]] = list


def make_callbacks(settings: Settings, data: TrainingData, run: RunDirectory, model: Any, source: GeneralQueueInput,
                   components: Components) -> list[Callback]:
    """Return the callbacks of a run, in the order in which they act after a step.

    Custom callbacks come first, or after those that evaluate the model. Then come those that save and log results, and
    then those that end the run. So a checkpoint contains the state of every callback at its step.

    Args:
        settings: settings of the run.
        data: training data.
        run: directory of the run.
        model: the run's model.
        source: input of the towers.
        components: functions that make custom callbacks.
    """
    train, log, checkpoint = settings.train, settings.log, settings.checkpoint
    latest = latest_checkpoint(run.checkpoints)
    saved = None if latest is None else read_state(latest)
    metric: str | None = None       # the scalar of best checkpoints and early stopping
    scores: list[str] = []
    validator: BleuValidator | None = None
    callbacks: list[Callback] = [*components.callbacks_before(), NaNGuard()]
    if train.precision == "float16":
        callbacks.append(LossScaleMonitor())
    if is_validated(settings, data):
        validator = make_validator(settings, data, model)
        callbacks.append(validator)
        metric, scores = validator.metric, validator.scalars
        if log.attention_pictures:
            callbacks.append(AttentionPictures(
                model, data.valid_source, data.valid_target, data.source_vocabulary, data.target_vocabulary,
                log.attention_pictures, settings.search.averaged, scores[0]))
    check_plateau(settings, scores)
    limit, end_of_epochs = _time_limit(train, saved), estimated_end(train, source)
    if end_of_epochs is not None:
        if latest is not None and saved is not None:
            restore_callback(end_of_epochs, saved.callbacks, latest / STATE)    # for the expected end
        callbacks.append(end_of_epochs)
    callbacks.append(make_schedule(settings.schedule, settings.optimizer.learning_rate, width_of_model(settings),
                                   train.steps, limit, end_of_epochs))
    if metric and train.stop_patience:
        callbacks.append(EarlyStopping(metric, train.stop_patience, mode=mode_of(metric)))
    saver = CheckpointSaver(run.checkpoints, checkpoint.steps, checkpoint.minutes, checkpoint.keep, source,
                            fingerprints(data))
    if metric and checkpoint.keep_best:
        callbacks.append(BestCheckpoints(run.best, checkpoint.keep_best, metric, mode_of(metric), saver))
    if log.histograms:
        callbacks.append(Histograms(log.histograms))
    callbacks += [Introduction(settings, data, run, metric is not None), *components.callbacks_after(), saver,
                  Progress(log.steps, expected_end=last_update(train, end_of_epochs)), QueueMonitor(source, log.steps)]
    if train.steps:
        callbacks.append(StopAtStep(train.steps))
    if limit is not None:
        callbacks.append(limit)
    if validator is not None and saved is not None:
        _forget_scores_of_other_text(callbacks, validator, saved)
    return callbacks


def _forget_scores_of_other_text(callbacks: Sequence[Callback], validator: BleuValidator, saved: CheckpointState
                                 ) -> None:
    """Let the callbacks that watch a score begin again if its validation set had other sentences before a resume."""
    validation = saved.callbacks.get(validator.state_key)
    for callback in callbacks:
        if isinstance(callback, ScoreWatcher) and isinstance(validation, dict):
            callback.forgets_scores = validator.had_other_text(validation, callback.metric)


def _time_limit(train: TrainSettings, saved: CheckpointState | None) -> StopAfterMinutes | None:
    """Return the limit of `train.minutes`, or None; it counts the time before a resume, even if there was no limit.

    Args:
        train: the limits.
        saved: state of the checkpoint to resume from; None for a new run.
    """
    if not train.minutes:
        return None
    limit = StopAfterMinutes(train.minutes)
    seconds = None if saved is None else trained_seconds(saved)
    if seconds is not None:
        limit.restore_seconds(seconds)
    return limit


def estimated_end(train: TrainSettings, source: GeneralQueueInput) -> EndOfEpochs | None:
    """Return the end of `train.epochs`; None without this limit, or if the size of an epoch is unknown, as of a stream.

    It is an estimate if the corpus has several blocks, or if batches had another size before a resume.
    """
    if not train.epochs:
        return None
    try:
        return EndOfEpochs(train.epochs, source.estimated_size(), train.update_cycle)
    except NotImplementedError:
        return None


def last_update(train: TrainSettings, end_of_epochs: EndOfEpochs | None) -> int:
    """Return the update at which `train.steps` or `train.epochs` ends a run, whichever is earlier; 0 without both."""
    ends = [train.steps] if train.steps else []
    if end_of_epochs is not None:
        ends.append(end_of_epochs.last_update())
    return min(ends, default=0)


def is_validated(settings: Settings, data: TrainingData) -> bool:
    """Return whether a run is validated."""
    return bool(data.validation_sets and (settings.validation.steps or settings.validation.minutes))


def validation_decides(settings: Settings, data: TrainingData) -> bool:
    """Return whether validation chooses the best checkpoint of a run, and may end the run.

    Sets of general data decide only if `validation.metric_set` is set, because the unchanged model may be the best on
    them.
    """
    return is_validated(settings, data) and (bool(settings.validation.metric_set) or not has_only_general_sets(data))


def deciding_scalar(settings: Settings, data: TrainingData) -> str | None:
    """Return the scalar by which validation chooses the best checkpoint and may end the run; None if it does not."""
    if not validation_decides(settings, data):
        return None
    validation = settings.validation
    return METRICS[validation.metric].scalar_of(validation.metric_set, data.validation_sets[0].name)


def patience_scalar(settings: Settings, data: TrainingData, run: RunDirectory) -> str | None:
    """Return the scalar whose patience may have ended a run; None if validation does not decide.

    None, too, if the sentences of its set have changed since the last checkpoint: counting then starts again.
    """
    scalar, latest = deciding_scalar(settings, data), latest_checkpoint(run.checkpoints)
    state = None if scalar is None or latest is None else read_state(latest).callbacks.get(BleuValidator.state_key)
    if scalar is None or not isinstance(state, dict):
        return scalar
    sets = [validation_set.first(settings.validation.sentences) for validation_set in data.validation_sets]
    fingerprints_now = fingerprints_of_sets(sets, ["", *(validation_set.name for validation_set in sets[1:])])
    return None if is_of_other_text(scalar, state, fingerprints_now) else scalar


def make_validator(settings: Settings, data: TrainingData, model: Any) -> BleuValidator:
    """Return the callback that validates on the data's validation sets.

    Raises:
        SettingsError: `validation.metric` cannot be computed.
    """
    validation = settings.validation
    first, *others = [validation_set.first(validation.sentences) for validation_set in data.validation_sets]
    return BleuValidator(
        model, first.source, first.references[0], data.source_vocabulary, data.target_vocabulary, validation.steps,
        settings.search, loss=_takes_batches(model), every_minutes=validation.minutes,
        more_references=first.references[1:], more_sets=others, metric=validation.metric,
        metric_set=validation.metric_set, seed=settings.data.seed, name=first.name, at_start=validation.at_start,
        decides=validation_decides(settings, data))


def check_plateau(settings: Settings, scores: Sequence[str]) -> None:
    """Refuse a plateau schedule whose metric is a missing validation score, or a mean over training.

    A mean over training would make the learning rate depend on the step at which a run was interrupted.

    Args:
        settings: settings of the run.
        scores: names of the run's validation scores.

    Raises:
        SettingsError: `schedule.metric` is not in `scores`, and no custom callback seems to record it.
    """
    metric = settings.schedule.metric
    if settings.schedule.name != "plateau":
        return
    if metric in MEANS_OF_TRAINING:
        raise SettingsError(f"schedule.metric={metric} is a mean over training updates, which changes if training is "
                            "interrupted: use a validation score, such as validation_loss.")
    is_misspelt = f"validation_{metric}" in scores or nearest(metric, scores, ALMOST_EQUAL) is not None
    if metric not in scores and (metric.startswith("validation") or is_misspelt):
        raise SettingsError(f"schedule.metric={metric} is not a validation score of this run, so the learning rate "
                            f"would never decrease: use {', '.join(scores)}." if scores else
                            f"schedule.name=plateau needs {metric}, but this run has no validation: pass validation "
                            "text (and validation.steps), or use another schedule.")


def _takes_batches(model: Any) -> bool:
    """Return whether the inputs of the tower are exactly the fields of a `Batch`."""
    names = [spec.name for spec in model.inputs() if spec.name != ALIGNMENT]
    return names == [spec.name for spec in batch_signature()]


def make_config(settings: Settings, data: TrainingData, run: RunDirectory,
                components: Components) -> tuple[TrainConfig, StopOnSignal]:
    """Configure the default graph for a run.

    Returns:
        Tensorpack's configuration of the run, and the callback that knows whether a signal stopped the run.
    """
    configure_graph(graph_settings(settings))
    data_settings = settings.data
    model = components.model(settings)
    set_model_optimizer(model, settings)
    check_gradient_checkpointing(model, settings.train)
    # The introduction reports the size of prepared data. A stream reports each epoch.
    report = logger.info if isinstance(data, StreamedCorpus) else partial(logger.info, extra=DETAIL)
    batches = make_batches(data, data_settings, settings.train.epochs or None, report,
                           _wants_alignments(model, settings))
    source = components.source(batches, feeders=data_settings.feeders, capacity=data_settings.queue_capacity,
                               name=str(data.directory))
    stop = StopOnSignal(interrupt=lambda: source.stop(None))
    is_new = latest_checkpoint(run.checkpoints) is None
    initializer = initial_values(settings.init, data, data_settings.seed) if is_new else None
    config = TrainConfig(
        model=model, data=source, update_cycle=settings.train.update_cycle,
        callbacks=[*make_callbacks(settings, data, run, model, source, components), stop],
        monitors=_monitors_of_run(settings, run), summary_steps=settings.log.steps,
        **({"session_init": initializer} if initializer else {}))
    return config, stop


def check_tracker(settings: Settings) -> None:
    """Check that the library of `log.tracker` is installed.

    Raises:
        SettingsError: it is missing.
    """
    if settings.log.tracker != "none":
        check_library(settings.log.tracker)


def _monitors_of_run(settings: Settings, run: RunDirectory) -> list[MonitorBase]:
    values = flatten(settings)
    monitors: list[MonitorBase] = [EventWriter(run.log, values), StatsWriter(run.log)]
    if settings.log.tracker != "none":
        tracker = make_tracker(settings.log.tracker, settings.log.tracker_project, name_for_tracker(run.path))
        monitors.append(TrackerMonitor(tracker, run.log, values))
    return monitors


def graph_settings(settings: Settings) -> GraphSettings:
    """Return the settings by which the towers and the optimizer of a run are built."""
    train = settings.train
    return GraphSettings(settings.data.seed, train.precision, train.gradient_checkpointing,
                         LossScaling(train.loss_scale), train.deterministic, train.tf32, train.xla, train.fused_norm)


def with_vocabulary_sizes(settings: Settings, data: TrainingData) -> Settings:
    """Return the settings with the sizes of the data's vocabularies in the model's group.

    Raises:
        SettingsError: the data have source factors, which the custom model does not support.
    """
    if settings.model is None:
        return settings         # the model is not made from settings
    model = model_with_sizes(settings, data.source_vocabulary.size, data.target_vocabulary.size)
    factors = [vocabulary.size for vocabulary in factors_of(data.source_vocabulary)]
    if hasattr(model, "source_factor_vocab_sizes"):
        model = dataclasses.replace(model, source_factor_vocab_sizes=factors)
    elif factors:
        raise SettingsError(f"{data.directory} has {len(factors)} source factors, but architecture="
                            f"{settings.architecture} has no setting model.source_factor_vocab_sizes: prepare the data "
                            "without --source-factors.")
    shared = data.shared_vocabulary or same_pieces(data.source_vocabulary, data.target_vocabulary)
    if not shared and getattr(model, "tie_embeddings", None) == "all":
        logger.info("Source and target have separate vocabularies: model.tie_embeddings=target.")
        model = dataclasses.replace(model, tie_embeddings="target")
    return dataclasses.replace(settings, model=model)


def model_with_sizes(settings: Settings, source: int, target: int) -> Any:
    """Return the model's group of `settings` with the sizes of the vocabularies.

    Raises:
        SettingsError: the settings of a custom model lack a field for a size.
    """
    names = {field.name for field in dataclasses.fields(settings.model)}
    missing = [name for name in ("source_vocab_size", "target_vocab_size") if name not in names]
    if missing:
        raise SettingsError(f"{type(settings.model).__name__}, the settings of the model {settings.architecture}, "
                            f"lacks '{missing[0]}': add `{missing[0]}: int = 0`, which is set from the data.")
    return dataclasses.replace(settings.model, source_vocab_size=source, target_vocab_size=target)


def set_model_optimizer(model: Any, settings: Settings) -> None:
    """Set the optimizer of the settings in the model, unless it defines `optimizer` or already has `make_optimizer`."""
    if isinstance(model, NMTModel) and type(model).optimizer is NMTModel.optimizer and model.make_optimizer is None:
        model.make_optimizer = partial(make_optimizer, settings.optimizer, settings.train.clip_norm)


def check_gradient_checkpointing(model: Any, settings: TrainSettings) -> None:
    """Refuse `train.gradient_checkpointing` for a model on which it has no effect.

    Raises:
        SettingsError: the model has no layers that can be recomputed.
    """
    if settings.gradient_checkpointing and not getattr(model, "recomputes", True):
        raise SettingsError(f"train.gradient_checkpointing=true has no effect on {type(model).__name__}, because "
                            "only the Transformer can recompute its layers: set it to false.")


def _wants_alignments(model: Any, settings: Settings) -> bool:
    """Return whether the towers read word alignments.

    Raises:
        SettingsError: they do not, but the settings request guided alignment.
    """
    reads_alignments = any(spec.name == ALIGNMENT for spec in model.inputs())
    weight = getattr(settings.model, "guided_alignment_weight", 0.0)
    if weight > 0 and not reads_alignments:
        raise SettingsError(f"model.guided_alignment_weight={weight:g} has no effect on {type(model).__name__}, "
                            "whose training towers do not read alignments: set it to 0.")
    return reads_alignments
