"""Restoring a checkpoint, to go on training or to translate: every variable of the graph, or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.utils import logger

from towernmt.checkpoint.held import HeldCheckpoint, held_checkpoint
from towernmt.checkpoint.weights import refuse_unknown, saved_name
from towernmt.core.errors import CheckpointError
from towernmt.core.tensors import Session, Variable
from towernmt.core.terminal.terminal_log import DETAIL
from towernmt.core.tf_compat import tf1
from towernmt.optim.loss_scale import SCOPE as LOSS_SCALE

_MEND = "use the settings it was trained with, or another run."
_MODEL = "use that model (the class, in Python: model=), or another run."


class RestoreCheckpoint(SessionInit):
    """Give every variable of the graph its value from a checkpoint (a tensorpack `SessionInit`).

    tensorpack's `SaverRestore` only warns of a variable that the checkpoint lacks, and leaves it
    uninitialised. Of what only the checkpoint has, training's own (the optimizer's slots and the like) is passed over,
    and weights are refused: they are another model's.

    Args:
        checkpoint: the prefix of TensorFlow's files, such as "runs/de-en/checkpoints/step-1000/model"; or a
            `HeldCheckpoint`, which its owner closes.
        averaged: a weight gets its moving average, where the checkpoint has one.
        scope: only the variables under this variable scope are the checkpoint's, which has them without it; "" for all.
    Raises:
        CheckpointError: unreadable, or a variable of the graph is missing or has another shape, or the graph lacks a
            trained one of the checkpoint.
    """

    def __init__(self, checkpoint: str | Path | HeldCheckpoint, averaged: bool = False, scope: str = "") -> None:
        self.held, self._is_ours = held_checkpoint(checkpoint), not isinstance(checkpoint, HeldCheckpoint)
        self.name, self.averaged, self._prefix = self.held.name, averaged, f"{scope}/" if scope else ""

    def _setup_graph(self) -> None:
        saved = self.held.shapes()
        variables = self._check(self._named(tf1.global_variables()), saved)
        self._saver = tf1.train.Saver({saved_name(name, saved, self.averaged): v for name, v in variables.items()})
        self._variables = list(variables.values())

    def _named(self, variables: Sequence[Variable]) -> dict[str, Variable]:
        """The variables of the scope, by their names in the checkpoint."""
        return {v.op.name.removeprefix(self._prefix): v for v in variables if v.op.name.startswith(self._prefix)}

    def _check(self, variables: Mapping[str, Variable], saved: Mapping[str, list[int]]) -> dict[str, Variable]:
        """The variables that the checkpoint gives: all, but for a loss scale that it was trained without."""
        variables = {name: v for name, v in variables.items() if name in saved or not name.startswith(f"{LOSS_SCALE}/")}
        for name, variable in variables.items():
            shape = variable.shape.as_list()
            if name not in saved:
                raise CheckpointError(f"{self.name}: variable '{name}' is not in this checkpoint, which "
                                      f"belongs to another model or optimizer; {_MEND}")
            if saved[name] != shape:
                raise CheckpointError(f"{self.name}: variable '{name}' has shape {saved[name]} there "
                                      f"and {shape} in the model; {_MEND}")
        refuse_unknown(self.held, variables.keys(), _MODEL)
        return variables

    @property
    def saver_def(self) -> Any:
        """Names what restores in the graph, once it was set up (TensorFlow's `SaverDef`)."""
        return self._saver.saver_def

    def saver_variables(self) -> list[str]:
        """The names of the variables that it gives values, once it was set up."""
        return [variable.op.name for variable in self._variables]

    def _run_init(self, sess: Session) -> None:
        logger.info(f"Restoring {self.name} ...", extra=DETAIL)
        self.held.restore(self._saver, sess)
        if self._is_ours:
            self.held.close()
