"""Restoring a checkpoint for translation: every variable of the model or an error, and nothing else."""

from __future__ import annotations

from typing import Any

from tensorpack.tfutils.sessinit import SaverRestore, SessionInit
from tensorpack.utils import logger

from towernmt.errors import CheckpointError
from towernmt.tf_compat import tf, tf1


class StrictRestore(SessionInit):
    """Give every variable of the graph its value from a checkpoint (tensorpack's `SessionInit`).

    tensorpack's own `SaverRestore` only warns of a variable that the checkpoint lacks and leaves it
    uninitialised. What only the checkpoint has (the optimizer's slots) is passed over in silence.

    Raises:
        CheckpointError: unreadable, or a variable of the model is missing or has another shape.
    """

    def __init__(self, path: str) -> None:
        """Args: path: the checkpoint's prefix, such as "runs/de-en/checkpoints/step-1000/model"."""
        self.path = path

    def _setup_graph(self) -> None:
        try:
            reader = SaverRestore._read_checkpoint_vars(self.path)[0]
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.path}: not a readable checkpoint "
                                  f"({_first_line(error)}).") from error
        shapes = reader.get_variable_to_shape_map()
        to_restore: dict[str, Any] = {}
        for variable in tf1.global_variables():
            name, shape = variable.op.name, variable.shape.as_list()
            if not reader.has_tensor(name + ":0"):
                raise CheckpointError(f"{self.path}: the model's variable {name} {shape} is not in this "
                                      "checkpoint. Was it written by a run with other settings?")
            if list(shapes[name + ":0"]) != shape:
                raise CheckpointError(f"{self.path}: {name} has shape {list(shapes[name + ':0'])} there and "
                                      f"{shape} in the model. Was it written by a run with other settings?")
            to_restore[reader.get_real_name(name + ":0")] = variable
        self._saver = tf1.train.Saver(var_list=to_restore)

    def _run_init(self, sess: Any) -> None:
        try:
            self._saver.restore(sess, self.path)
        except (tf.errors.OpError, ValueError) as error:
            raise CheckpointError(f"{self.path}: damaged checkpoint ({_first_line(error)}).") from error
        logger.info(f"Restored {self.path}")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
