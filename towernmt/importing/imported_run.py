"""Writes a foreign model as a run: settings, vocabularies, one checkpoint, and what came with the model."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.checkpoint.files import write_checkpoint
from towernmt.checkpoint.output_place import check_run_output
from towernmt.checkpoint.provenance import MADE_FROM, provenance, vocabulary_fingerprint
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import weights_of_graph
from towernmt.core.errors import CheckpointError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.importing.foreign_model import ForeignModel
from towernmt.models.interface import NMTModel
from towernmt.run.directory import RunDirectory
from towernmt.run.run_model import model_from_settings
from towernmt.run.settings import default_settings

KEPT = "imported"
"""The folder of a run with the files that came with a foreign model."""


def write_imported_run(model: ForeignModel, output: str | Path) -> Path:
    """Write a run; it is complete or not there.

    Args:
        output: the run's directory.
    Returns:
        Its checkpoint, `step-0`.
    Raises:
        SettingsError: there is a run in `output`, or the settings do not fit each other.
        CheckpointError: weights and settings do not fit, or the checkpoint cannot be written.
    """
    run = RunDirectory(output)
    check_run_output(run.path)
    settings = dataclasses.replace(default_settings("transformer"), model=model.settings, search=model.search)
    with run.writing("towernmt import"):
        check_run_output(run.path)      # nobody came first meanwhile
        try:
            save_vocabularies(model.source, model.target, run.vocabulary)
            made_from = {"vocabulary": vocabulary_fingerprint(run.vocabulary)}
            written = _write_weights(model_from_settings(settings), model, run.checkpoints, made_from)
            for file in model.kept:
                (run.path / KEPT).mkdir(exist_ok=True)
                shutil.copyfile(file, run.path / KEPT / file.name)
            run.save_settings(settings, provenance({**made_from, "imported": model.origin}))    # last: now it is a run
        except BaseException:
            for place in (run.checkpoints, run.vocabulary, run.path / KEPT):
                shutil.rmtree(place, ignore_errors=True)
            raise
    return written


def _write_weights(tower: NMTModel, model: ForeignModel, output: Path, made_from: dict[str, str]) -> Path:
    state: dict[str, Any] = {"format": 1, "step": 0, "position": None, "callbacks": {}, MADE_FROM: made_from}
    with tf.Graph().as_default(), tf1.Session() as session:
        with PredictTowerContext(""):
            tower.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in tower.inputs()])
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        _check_fit({name: tuple(variable.shape.as_list()) for name, variable in variables.items()}, model.weights,
                   model.origin)
        for name, variable in variables.items():
            variable.load(model.weights[name], session)
        state[WEIGHTS] = weights_of_graph()
        return write_checkpoint(tf1.train.Saver(list(variables.values())), session, output, 0, state)


def _check_fit(shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, np.ndarray], origin: str) -> None:
    found = {name: value.shape for name, value in weights.items()}
    for name in sorted({*shapes, *found}):
        if shapes.get(name) != found.get(name):
            raise CheckpointError(f"{origin}: what becomes the variable '{name}' has the shape {found.get(name)}, and "
                                  f"the settings ask for {shapes.get(name)}: is it the model of these settings?")
