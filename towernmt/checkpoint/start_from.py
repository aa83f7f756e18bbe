"""Starting a run from the parameters of another: its weights, and nothing else of its training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.utils import logger

from towernmt.checkpoint.held import HeldCheckpoint, held_checkpoint
from towernmt.checkpoint.packaged.packaged_run import open_run
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.weights import refuse_unknown, saved_name
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tensors import Session, Variable
from towernmt.core.tf_compat import tf1
from towernmt.optim.ema import SUFFIX


def initial_checkpoint(place: str | Path) -> tuple[SavedRun, str]:
    """The run and the checkpoint (TensorFlow's prefix) that `init.checkpoint` names.

    Args:
        place: a run's directory, which stands for its best checkpoint, or its last without validation; one of the
            run's checkpoints, such as `runs/de-en/checkpoints/step-1000`; or a package.
    Raises:
        SettingsError: it is neither.
        CheckpointError: the run has no checkpoint.
    """
    path = Path(place)
    if path.is_file() or SavedRun(path).exists():
        run = open_run(path)
        return run, run.checkpoint()
    run = SavedRun(path.parent.parent)
    if not run.exists() or not (path / "model.index").is_file():
        raise SettingsError(f"init.checkpoint={place}: expected the --logdir of a run, one of its checkpoints "
                            "(RUN/checkpoints/step-N), or a package.")
    return run, str(path / "model")


class StartFrom(SessionInit):
    """Give every model variable its value from a checkpoint (a tensorpack `SessionInit`).

    That is: the trainable ones and those in MODEL_VARIABLES. Each gets its moving average, where the checkpoint has
    one, and so does the moving average of this run. Optimizer, step and clock begin anew.

    Args:
        checkpoint: held already, or the prefix of TensorFlow's files, such as
            "runs/de-en/checkpoints/step-1000/model". It is let go when the values are there.
        new: regular expressions: a variable whose name one of them matches may be missing in the checkpoint, and then
            keeps its initial value.
        left_out: regular expressions: trained variables of the checkpoint that the model may lack.
    Raises:
        CheckpointError: unreadable, or a variable is missing or has another shape, or the model lacks a trained one.
    """

    def __init__(self, checkpoint: str | HeldCheckpoint, new: Sequence[str] = (),
                 left_out: Sequence[str] = ()) -> None:
        self.held, self.new, self.left_out = held_checkpoint(checkpoint), list(new), list(left_out)
        self.name = self.held.name

    def _setup_graph(self) -> None:
        saved = self.held.shapes()
        weights = {v.op.name: v for v in [*tf1.trainable_variables(), *tf1.model_variables()]}
        moving = {v.op.name.removesuffix(SUFFIX): v for v in tf1.global_variables() if v.op.name.endswith(SUFFIX)}
        self._savers = [tf1.train.Saver(found) for found in (
            self._found(weights, saved), self._found(moving, saved)) if found]
        if not self._savers:
            raise CheckpointError(f"{self.name}: it holds none of the model's variables; name another run in "
                                  "init.checkpoint.")
        refuse_unknown(self.held, {v.op.name for v in tf1.global_variables()},
                       "train that one, or match the name in init.left_out to begin without it.", self.left_out)

    def _found(self, variables: dict[str, Variable], saved: dict[str, list[int]]) -> dict[str, Variable]:
        """The variables by the name under which the checkpoint has them."""
        found = {}
        for name, variable in variables.items():
            key = saved_name(name, saved)
            if key in saved:
                if saved[key] != variable.shape.as_list():
                    raise CheckpointError(f"{self.name}: variable '{name}' has shape {saved[key]} there and "
                                          f"{variable.shape.as_list()} in the model; give this run the other's sizes.")
                found[key] = variable
            elif not any(re.search(pattern, name) for pattern in self.new):
                raise CheckpointError(f"{self.name}: variable '{name}' is not in this checkpoint; give this run the "
                                      "other's settings, or match the name in init.new to begin with it anew.")
        return found

    def _run_init(self, sess: Session) -> None:
        logger.info(f"Starting from the parameters of {self.name} ...")
        for saver in self._savers:
            self.held.restore(saver, sess)
        self.held.close()
