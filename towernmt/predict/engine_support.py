"""Which engines and precisions can translate or score with a model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.checkpoint.records import check_vocabulary_of
from towernmt.checkpoint.saved_run import SavedRun, open_run_checkpoint
from towernmt.core.errors import SettingsError
from towernmt.core.machine import parse_device
from towernmt.models.model_settings import PRECISIONS
from towernmt.predict.search.device_batches import uses_gpu
from towernmt.predict.search.search_settings import GRAPH, EnsembleSettings

ENGINES = ("auto", GRAPH)
"""Engines of a `Translator` and a scorer; the first is the default."""
WEIGHT_PRECISIONS = ("int16", "int8")
"""Precisions of weights that only CTranslate2 has."""

log = logging.getLogger(__name__)


def log_graph(run: SavedRun, reason: str) -> None:
    """Log that the graph is used for a run, and the reason, a clause."""
    log.info("%s: TensorFlow's graph is used, because %s.", run.name, reason)


def why_only_graph(members: Sequence[Sequence[Any]], models: Sequence[Any], device: str | None,
                   ensemble: EnsembleSettings | None) -> str:
    """Return why only the graph is possible, a clause; "" if another engine may be.

    Args:
        members: lists with an element for each member of an ensemble, or one for all.
        models: models as Python objects; None for those of the runs.
        device: "cpu", "gpu", "gpu:N" or None.
        ensemble: how to combine the members.

    Raises:
        SettingsError: `device` is not a device, or a single model has several weights of an ensemble.
    """
    if device is not None:
        parse_device(device)
    if max(map(len, members)) > 1:
        return "the model is an ensemble"
    if ensemble is not None:
        ensemble.normalised_weights(1)
    if any(model is not None for model in models):
        return "the model is a Python object"
    return "it runs on a GPU" if uses_gpu(device) else ""


def default_precision(runs: Sequence[SavedRun], engine: str) -> str:
    """Return the precision for models without a requested precision: that of a package, or float32."""
    if len(runs) == 1 and isinstance(runs[0], PackagedRun) and engine != GRAPH:
        return runs[0].manifest.processor_precision
    return PRECISIONS[0]


def check_engine(engine: str, precision: str) -> None:
    """Check an engine and its precision.

    Raises:
        SettingsError: the engine is not one of `ENGINES`, or does not support the precision.
    """
    if engine not in ENGINES:
        raise SettingsError(f"engine '{engine}': choose one of {', '.join(ENGINES)}.")
    check_precision(precision, engine)


def check_precision(precision: str | None, engine: str) -> None:
    """Check that auto or graph supports a precision; CTranslate2 itself checks its precision.

    Args:
        precision: requested precision; None by default.
        engine: one of `ENGINES`, or "ctranslate2".

    Raises:
        SettingsError: the engine does not support the precision.
    """
    precisions = PRECISIONS if engine == GRAPH else (*PRECISIONS, *WEIGHT_PRECISIONS)
    if engine in ENGINES and precision not in (None, *precisions):
        raise SettingsError(f"--precision {precision}: --engine {engine} supports {', '.join(precisions)}.")


def graph_precision(precision: str | None) -> str:
    """Return the precision of the graph: float32 if none is requested, or one that only CTranslate2 has."""
    return precision if precision in PRECISIONS else PRECISIONS[0]


def checkpoint_of(run: SavedRun, checkpoint: Any, averaged: bool) -> tuple[str, Any]:
    """Return the prefix of a checkpoint, and the checkpoint for the graph, which training cannot remove.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: the vocabulary does not belong to the run, or the run does not have the requested weights.
    """
    run.check_weights(averaged)
    if isinstance(run, PackagedRun) and not isinstance(checkpoint, OpenCheckpoint):
        return run.checkpoint_prefix(checkpoint), checkpoint      # its files are written when the graph needs them
    held = open_run_checkpoint(run, checkpoint)
    check_vocabulary_of(held, run.vocabulary)
    return held.original, held
