"""Read TensorFlow checkpoints of other programs, and write an imported model as a run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.records import IMPORTED_MODEL, MADE_FROM, provenance, vocabulary_fingerprint
from towernmt.checkpoint.saved_run import IMPORTED
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import weights_of_graph
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.graph_state import BUILDING
from towernmt.core.session import session_config, use_no_gpu
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies
from towernmt.interop.foreign_model import ForeignModel, ForeignParameters
from towernmt.models.interface import NMTModel
from towernmt.run.directory import RunDirectory, model_from_settings
from towernmt.run.run_settings import default_settings


def checkpoint_prefix(path: Path, system: str) -> Path:
    """Return the prefix of a checkpoint's files.

    Args:
        path: a prefix, or a directory whose file `checkpoint` names one.
        system: name of the program that wrote the checkpoint, for messages.

    Raises:
        SettingsError: the checkpoint does not exist.
    """
    if Path(f"{path}.index").is_file():
        return path
    listed = path / "checkpoint"
    lines = listed.read_text(encoding="utf-8", errors="replace").splitlines() if listed.is_file() else []
    for line in lines:
        if line.startswith("model_checkpoint_path:"):
            prefix = path / Path(line.partition(":")[2].strip().strip('"')).name
            if Path(f"{prefix}.index").is_file():
                return prefix
    raise SettingsError(f"{path}: found no {system} checkpoint: pass the directory with the file `checkpoint`, or the "
                        "prefix of a checkpoint, such as model.ckpt-10000.")


_DAMAGED = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
"""The exceptions of TensorFlow at a damaged checkpoint; IndexError at a file that ends too early."""


def open_checkpoint(prefix: Path, name_of: Callable[[str], str]) -> ForeignParameters:
    """Return the parameters of a checkpoint; each is read when it is used.

    Args:
        prefix: prefix of the checkpoint's files.
        name_of: returns the parameter name for a variable name; "" for variables that do not belong to the model.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    opened = OpenCheckpoint(prefix)     # TensorFlow treats [ and * in the name of a file as a pattern
    try:
        reader = tf.train.load_checkpoint(opened.prefix)
        shapes = reader.get_variable_to_shape_map()
    except _DAMAGED as error:
        raise CheckpointError(f"{prefix}: not a TensorFlow checkpoint, or the checkpoint is damaged.") from error
    names = {name_of(name): name for name in shapes if name_of(name)}

    def value(name: str) -> object:
        try:
            return reader.get_tensor(names[name])
        except _DAMAGED as error:       # `opened` has to exist until here, because TensorFlow opens its files by name
            raise CheckpointError(f"{opened.original}: cannot read the variable {names[name]}: the checkpoint is "
                                  "damaged.") from error

    return ForeignParameters(str(prefix), {name: tuple(shapes[saved]) for name, saved in names.items()}, value)


def write_imported_run(model: ForeignModel, output: str | Path) -> Path:
    """Write an imported model as a run; the run is either complete or missing.

    Returns:
        Path of the checkpoint, `step-0`.

    Raises:
        SettingsError: `output` contains a run, or the settings contradict each other.
        CheckpointError: the weights do not fit the settings, or the checkpoint cannot be written.
    """
    run = RunDirectory(output)
    settings = dataclasses.replace(default_settings("transformer"), model=model.settings, search=model.search)
    with run.making("towernmt import"):
        save_vocabularies(model.source, model.target, run.vocabulary)
        made_from = {"vocabulary": vocabulary_fingerprint(run.vocabulary)}
        written = _write_weights(model_from_settings(settings), model, run.checkpoints, made_from)
        for file in model.copied_files:
            (run.path / IMPORTED).mkdir(exist_ok=True)
            shutil.copyfile(file, run.path / IMPORTED / file.name)
        run.save_settings(settings, provenance({**made_from, IMPORTED_MODEL: model.origin}))
    return written


def _write_weights(tower: NMTModel, model: ForeignModel, output: Path, made_from: dict[str, str]) -> Path:
    state: dict[str, Any] = {"step": 0, "position": None, "callbacks": {}, MADE_FROM: made_from}
    use_no_gpu()
    with BUILDING, tf.Graph().as_default(), tf1.Session(config=session_config(on_cpu=True)) as session:
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
    weight_shapes = {name: value.shape for name, value in weights.items()}
    for name in sorted({*shapes, *weight_shapes}):
        if shapes.get(name) != weight_shapes.get(name):
            raise CheckpointError(f"{origin}: the value for the variable '{name}' has the shape "
                                  f"{weight_shapes.get(name)}, but the settings need {shapes.get(name)}: the settings "
                                  "belong to another model.")
