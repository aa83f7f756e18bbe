"""The callbacks of a run, from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from tensorpack.callbacks import Callback

from towernmt.callbacks.checkpoints.best_checkpoints import BestCheckpoints
from towernmt.callbacks.checkpoints.saver import CheckpointSaver
from towernmt.callbacks.reporting.histograms import Histograms
from towernmt.callbacks.reporting.loss_scale_monitor import LossScaleMonitor
from towernmt.callbacks.reporting.progress import Progress
from towernmt.callbacks.schedules.make import make_schedule
from towernmt.callbacks.stopping.early_stopping import EarlyStopping
from towernmt.callbacks.stopping.limits import StopAfterMinutes, StopAtStep
from towernmt.callbacks.stopping.nan_guard import NaNGuard
from towernmt.callbacks.validation.attention_pictures import AttentionPictures
from towernmt.callbacks.validation.bleu_validator import BleuValidator
from towernmt.callbacks.validation.metrics import mode_of
from towernmt.checkpoint.provenance import fingerprints
from towernmt.core.errors import SettingsError
from towernmt.dataflow.order.training_data import TrainingData
from towernmt.input_source import GeneralQueueInput, QueueMonitor
from towernmt.models.interface import ALIGNMENT, batch_signature
from towernmt.run.components import Components
from towernmt.run.directory import RunDirectory
from towernmt.run.introduction import Introduction
from towernmt.run.settings import Settings, TrainSettings


def make_callbacks(settings: Settings, data: TrainingData, run: RunDirectory, model: Any, source: GeneralQueueInput,
                   components: Components) -> list[Callback]:
    """The callbacks of a run, in the order in which they act after a step.

    One's own stand before the usual ones, or behind those that find out about the model. Behind them stand those that
    keep and show what was found out, and then those that end the run: a checkpoint has what every callback remembers
    of its step.
    """
    s, log, kept = settings.train, settings.log, settings.checkpoint
    metric: str | None = None       # the scalar that the best checkpoints and early stopping go by
    scores: list[str] = []
    callbacks: list[Callback] = [*components.callbacks_before(), NaNGuard()]
    if s.precision == "float16":
        callbacks.append(LossScaleMonitor())
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
    end = last_update(s, source)
    callbacks.append(make_schedule(settings.schedule, settings.optimizer.learning_rate,
                                   getattr(settings.model, "hidden_size", 512), end, limit))
    if metric and s.stop_patience:
        callbacks.append(EarlyStopping(metric, s.stop_patience, mode=mode_of(metric)))
    if metric and kept.keep_best:
        callbacks.append(BestCheckpoints(run.best, kept.keep_best, metric, mode_of(metric)))
    saver = CheckpointSaver(run.checkpoints, kept.steps, kept.minutes, kept.keep, source, fingerprints(data))
    if log.histograms:
        callbacks.append(Histograms(log.histograms))
    callbacks += [Introduction(settings, data, run, metric is not None), *components.callbacks_after(), saver,
                  Progress(log.steps, expected_end=end), QueueMonitor(source, log.steps)]
    if s.steps:
        callbacks.append(StopAtStep(s.steps))
    if limit is not None:
        callbacks.append(limit)
    return callbacks


def last_update(train: TrainSettings, source: GeneralQueueInput) -> int:
    """The update at which `train.steps` or `train.epochs`, whichever is nearer, ends a run; 0: neither does.

    The end of the epochs is an estimate where the corpus has several blocks, and 0 where no size of an epoch is known,
    as of a stream.
    """
    ends = [train.steps] if train.steps else []
    if train.epochs:
        with contextlib.suppress(NotImplementedError):
            ends.append(max(1, train.epochs * source.estimated_size() // train.update_cycle))
    return min(ends, default=0)


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


MEANS_OF_TRAINING = ("loss", "nll", "perplexity")


def check_plateau(settings: Settings, scores: Sequence[str]) -> None:
    """Refuse a plateau schedule that would wait for a score of validation which never comes, or that watches a mean of
    training: that depends on where a run was stopped, and so would the rate.

    Args:
        settings: of the run.
        scores: the names of those that come.
    Raises:
        SettingsError: `schedule.metric` is none of them.
    """
    metric = settings.schedule.metric
    if settings.schedule.name != "plateau":
        return
    if metric in MEANS_OF_TRAINING:
        raise SettingsError(f"schedule.metric={metric} is a mean over some updates of training, which a stop would "
                            "cut: take a score of validation, such as validation_loss.")
    if metric.startswith("validation") and metric not in scores:
        raise SettingsError(f"schedule.metric={metric} is no score of this run's validation, and the learning rate "
                            f"would never fall: take {', '.join(scores)}." if scores else
                            f"schedule.name=plateau watches {metric}, but there is no validation in this run: give "
                            "validation text (and validation.steps), or take another schedule.")


def _takes_batches(model: Any) -> bool:
    """Whether the tower takes what `Batch` holds, and nothing else."""
    names = [spec.name for spec in model.inputs() if spec.name != ALIGNMENT]
    return names == [spec.name for spec in batch_signature()]
