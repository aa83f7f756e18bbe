"""Restore a checkpoint to resume or translate, or start a new run from the weights of another run.

Resuming restores every variable of the graph, or raises an error. A new run takes only the weights of the other run,
and nothing else of its training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.utils import logger

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint, as_open_checkpoint
from towernmt.checkpoint.packaged_run import open_run
from towernmt.checkpoint.saved_run import SavedRun, run_of_checkpoint
from towernmt.checkpoint.weights import refuse_missing, refuse_unknown, saved_name
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tensors import Session, Variable
from towernmt.core.terminal_log import DETAIL
from towernmt.core.tf_compat import tf1
from towernmt.models.interface import NMTModel
from towernmt.optim.optimizer import SCOPE as LOSS_SCALE
from towernmt.optim.optimizer import averages

_FIX = "use the settings of its training, or another run."
_MODEL = "use that model (the class, in Python: model=), or another run."
_NO_MODEL = "use that model, or another run; if only training uses the variable, pass RestoreCheckpoint(model=MODEL)."


class RestoreCheckpoint(SessionInit):
    """A tensorpack `SessionInit` that restores every variable of the graph from a checkpoint.

    tensorpack's `SaverRestore` only warns of a variable that the checkpoint lacks, and leaves it uninitialised. Here
    that is an error. The graph must also have every weight of the checkpoint, which otherwise belongs to another model.
    A prediction graph may lack the weights that only training uses if `model` is passed. The graph may always lack the
    optimizer's slots and other variables of training.

    Args:
        checkpoint: the prefix of TensorFlow's files, such as "runs/de-en/checkpoints/step-1000/model"; or a
            `OpenCheckpoint`, which its owner closes.
        averaged: restore a weight from its moving average, if the checkpoint has one.
        scope: the variable scope to restore; names in the checkpoint are without it. "": all variables.
        model: the model of a prediction graph; None for a training graph.

    Raises:
        CheckpointError: the checkpoint is unreadable, a variable of the graph is missing or has another shape, or
            neither the graph nor the training tower of `model` has a weight of the checkpoint.
    """

    def __init__(self, checkpoint: str | Path | OpenCheckpoint, averaged: bool = False, scope: str = "",
                 model: NMTModel | None = None) -> None:
        self._checkpoint, self._is_ours = as_open_checkpoint(checkpoint), not isinstance(checkpoint, OpenCheckpoint)
        self.name, self.averaged, self._prefix = self._checkpoint.name, averaged, f"{scope}/" if scope else ""
        self._model = model

    def _setup_graph(self) -> None:
        saved_shapes = self._checkpoint.shapes()
        variables = self._check({v.op.name.removeprefix(self._prefix): v for v in tf1.global_variables()
                                 if v.op.name.startswith(self._prefix)}, saved_shapes)
        self._saver = tf1.train.Saver({saved_name(name, saved_shapes, self.averaged): v
                                       for name, v in variables.items()})

    def _check(self, variables: Mapping[str, Variable], saved_shapes: Mapping[str, list[int]]) -> dict[str, Variable]:
        """Return all variables, except those of a loss scale that the checkpoint lacks; check names and shapes."""
        variables = {name: v for name, v in variables.items()
                     if name in saved_shapes or not name.startswith(f"{LOSS_SCALE}/")}
        for name, variable in variables.items():
            shape = variable.shape.as_list()
            if name not in saved_shapes:
                refuse_missing(self._checkpoint, name, _FIX, self._model)
            if saved_shapes[name] != shape:
                raise CheckpointError(f"{self.name}: variable '{name}' has shape {saved_shapes[name]} in this "
                                      f"checkpoint but {shape} in the model; {_FIX}")
        fix = _NO_MODEL if self._model is None else _MODEL
        refuse_unknown(self._checkpoint, variables.keys(), fix, model=self._model)
        return variables

    def _run_init(self, sess: Session) -> None:
        logger.info(f"Restoring {self.name} ...", extra=DETAIL)
        self._checkpoint.restore(self._saver, sess)
        if self._is_ours:
            self._checkpoint.close()


def initial_checkpoint(location: str | Path) -> tuple[SavedRun, str]:
    """Return the run and the checkpoint (TensorFlow's prefix) of `init.checkpoint`.

    Args:
        location: a run's directory, for the checkpoint with which it translates (see `SavedRun.checkpoint`); a
            checkpoint of a run, such as `runs/de-en/checkpoints/step-1000` or an average of `towernmt average` inside
            the run; or a package.

    Raises:
        SettingsError: `location` is none of these.
        CheckpointError: the run has no checkpoint.
    """
    path = Path(location)
    if path.is_file() or SavedRun(path).exists():
        run = open_run(path)
        return run, run.checkpoint()
    containing_run = run_of_checkpoint(path)
    if containing_run is None:
        raise SettingsError(f"init.checkpoint={location}: expected the --logdir of a run, one of its checkpoints "
                            "(RUN/checkpoints/step-N), or a package.")
    return containing_run, str(path / "model")


class StartFrom(SessionInit):
    """A tensorpack `SessionInit` that loads the model variables from a checkpoint of another run.

    The model variables are the trainable variables and those in MODEL_VARIABLES. Each of them, and its moving average
    in this run, gets the moving average in the checkpoint if there is one. Optimizer, step and clock start afresh.

    Args:
        checkpoint: an open checkpoint, or the prefix of TensorFlow's files, such as
            "runs/de-en/checkpoints/step-1000/model". It is closed after loading.
        new: regular expressions for names of variables that the checkpoint may lack; these keep their initial values.
        left_out: regular expressions for names of trained variables of the checkpoint that the model may lack.

    Raises:
        CheckpointError: the checkpoint is unreadable, a variable is missing or has another shape, or the model lacks a
            trained variable.
    """

    def __init__(self, checkpoint: str | OpenCheckpoint, new: Sequence[str] = (), left_out: Sequence[str] = ()) -> None:
        self._checkpoint, self.new, self.left_out = as_open_checkpoint(checkpoint), list(new), list(left_out)
        self.name = self._checkpoint.name

    def _setup_graph(self) -> None:
        saved_shapes = self._checkpoint.shapes()
        weights = {v.op.name: v for v in [*tf1.trainable_variables(), *tf1.model_variables()]}
        self._savers = [tf1.train.Saver(variables) for variables in (
            self._by_saved_name(weights, saved_shapes), self._by_saved_name(averages(), saved_shapes)) if variables]
        if not self._savers:
            raise CheckpointError(f"{self.name} has none of the model's variables: set another run in "
                                  "init.checkpoint.")
        refuse_unknown(self._checkpoint, {v.op.name for v in tf1.global_variables()},
                       "train that model, or add the name to init.left_out to ignore the variable.", self.left_out)

    def _by_saved_name(self, variables: dict[str, Variable], saved_shapes: dict[str, list[int]]) -> dict[str, Variable]:
        """Return the variables by the names of their values in the checkpoint."""
        result = {}
        for name, variable in variables.items():
            key = saved_name(name, saved_shapes)
            if key in saved_shapes:
                if saved_shapes[key] != variable.shape.as_list():
                    raise CheckpointError(f"{self.name}: variable '{name}' has shape {saved_shapes[key]} in this "
                                          f"checkpoint but {variable.shape.as_list()} in the model; use the sizes of "
                                          "that run.")
                result[key] = variable
            elif not any(re.search(pattern, name) for pattern in self.new):
                raise CheckpointError(f"{self.name}: variable '{name}' is not in this checkpoint; use the settings of "
                                      "that run, or add the name to init.new to initialise the variable.")
        return result

    def _run_init(self, sess: Session) -> None:
        logger.info(f"Starting from the parameters of {self.name} ...")
        for saver in self._savers:
            self._checkpoint.restore(saver, sess)
        self._checkpoint.close()
