"""Restoring a checkpoint, to go on training or to translate: every variable of the graph, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.utils import logger

from towernmt.errors import CheckpointError
from towernmt.tf_compat import tf, tf1
from towernmt.train.checkpoint import reason_of
from towernmt.train.loss_scale import SCOPE as LOSS_SCALE

_MEND = "use the settings it was trained with, or another run."


class RestoreCheckpoint(SessionInit):
    """Give every variable of the graph its value from a checkpoint (a tensorpack `SessionInit`).

    tensorpack's `SaverRestore` only warns of a variable that the checkpoint lacks, and leaves it
    uninitialised. What only the checkpoint has (when translating, the optimizer's slots) is passed over.

    Args:
        prefix: of TensorFlow's files, such as "runs/de-en/checkpoints/step-1000/model".
    Raises:
        CheckpointError: unreadable, or a variable of the graph is missing or has another shape.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        self.name = self.prefix.removesuffix("/model")

    def _setup_graph(self) -> None:
        self._saver = tf1.train.Saver(self._check(tf1.global_variables()))

    def _check(self, variables: list[Any]) -> list[Any]:
        """The variables that the checkpoint gives: all, but for a loss scale that it was trained without."""
        try:
            saved = tf.train.load_checkpoint(self.prefix).get_variable_to_shape_map()
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise self._damaged(error) from error
        variables = [v for v in variables if v.op.name in saved or not v.op.name.startswith(f"{LOSS_SCALE}/")]
        for variable in variables:
            name, shape = variable.op.name, variable.shape.as_list()
            if name not in saved:
                raise CheckpointError(f"{self.name}: variable '{name}' is not in this checkpoint, which "
                                      f"belongs to another model or optimizer; {_MEND}")
            if saved[name] != shape:
                raise CheckpointError(f"{self.name}: variable '{name}' has shape {saved[name]} there "
                                      f"and {shape} in the model; {_MEND}")
        return variables

    def _run_init(self, sess: Any) -> None:
        logger.info(f"Restoring {self.name} ...")
        try:
            self._saver.restore(sess, self.prefix)
        except (tf.errors.OpError, ValueError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointError:
        reason = reason_of(error, Path(self.prefix).parent)
        return CheckpointError(f"{self.name}: the checkpoint is damaged or incomplete ({reason}); remove it "
                               "to take the one before it.")
