"""From settings to tensorpack's configuration of a run: graph, model, input, callbacks, monitors."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from tensorpack.utils import logger

from towernmt.callbacks.stopping.stop_signal import StopOnSignal
from towernmt.checkpoint.files import latest_checkpoint
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import GraphSettings, LossScaling
from towernmt.core.settings import flatten
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.dataflow.order.streamed_corpus import StreamedCorpus
from towernmt.dataflow.order.training_data import TrainingData, make_batches
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.dataflow.vocabulary.vocabulary_files import same_pieces
from towernmt.models.interface import ALIGNMENT, NMTModel
from towernmt.run.assemble_callbacks import make_callbacks
from towernmt.run.components import Components
from towernmt.run.directory import RunDirectory
from towernmt.run.initial_values import initial_values
from towernmt.run.settings import Settings, TrainSettings, model_with_sizes
from towernmt.train.config import TrainConfig
from towernmt.train.monitors import EventWriter, StatsWriter


def make_config(settings: Settings, data: TrainingData, run: RunDirectory,
                components: Components) -> tuple[TrainConfig, StopOnSignal]:
    """tensorpack's configuration of a run, and the callback that tells whether a signal stopped it."""
    s = settings.data
    model = components.model(settings)
    hand_optimizer(model, settings)
    check_gradient_checkpointing(model, settings.train)
    # Of prepared data the introduction says it; a stream tells of its epochs as it goes.
    report = logger.info if isinstance(data, StreamedCorpus) else partial(logger.info, extra=DETAIL)
    batches = make_batches(data, s, settings.train.epochs or None, report, _wants_alignments(model, settings))
    source = components.source(batches, feeders=s.feeders, capacity=s.queue_capacity, name=str(data.directory))
    stop = StopOnSignal(interrupt=lambda: source.stop(None))
    first = initial_values(settings.init, data) if latest_checkpoint(run.checkpoints) is None else None
    config = TrainConfig(
        model=model, data=source, update_cycle=settings.train.update_cycle,
        callbacks=[*make_callbacks(settings, data, run, model, source, components), stop],
        monitors=[EventWriter(run.log, flatten(settings)), StatsWriter(run.log)],
        **({"session_init": first} if first else {}))
    return config, stop


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
    one = data.shared_vocabulary or same_pieces(data.source_vocabulary, data.target_vocabulary)
    if not one and getattr(model, "tie_embeddings", None) == "all":
        logger.info("Source and target have vocabularies of their own: model.tie_embeddings=target.")
        model = dataclasses.replace(model, tie_embeddings="target")
    return dataclasses.replace(settings, model=model)


def hand_optimizer(model: Any, settings: Settings) -> None:
    """Give the model the run's optimizer, if it was made without one and does not define `optimizer()` itself."""
    takes_one = isinstance(model, NMTModel) and type(model).optimizer is NMTModel.optimizer
    if takes_one and model.make_optimizer is None and model.optimizer_settings is None:
        model.make_optimizer = partial(settings.optimizer.make, settings.train.clip_norm)


def check_gradient_checkpointing(model: Any, settings: TrainSettings) -> None:
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
