"""Detect the first value that is not finite, and end training before it is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorpack.callbacks import Callback

from towernmt.callbacks.stateful import find_saver, training_towers
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import all_finite, named_gradients

_LOSS_SCALE_HINT = (
    "the loss scale has reached its minimum of {:g}, so the range of float16 is too narrow for this model: set "
    "train.precision=bfloat16 or float32, or ")


class NaNGuard(Callback):
    """Ends training at the first step whose loss, gradients or other watched tensors are not finite.

    Each step fetches one flag per tensor together with the update. A flag needs a sum of squares, which the global norm
    computes anyway. The flags are in the order of computation: the loss of every tower, `tensors`, then the gradients
    from the output back to the input. So the first bad tensor is the nearest to the cause. A skipped update, as in
    float16 at an overflow, is not a divergence (see `allow_skipped_update` in `optim.gradients`). The variables
    are checked before training, every `check_steps`, and before the saver writes (`check_variables`), because finite
    gradients can make a variable overflow.

    If a value is not finite, the guard sets `trainer.diverged`, at which the saver does not write, and raises
    DivergenceError. Put it before all callbacks that save.

    Args:
        loss: name of the loss in a training tower; "": the trainer's cost, or "loss" without a trainer.
        tensors: names of further tensors in the training towers that must be finite.
        check_steps: steps between checks of all trainable variables; 0: no such checks.
        last_checkpoint: returns the path of the last good checkpoint; None: the saver's latest one.
    """

    _chief_only = False

    def __init__(self, loss: str = "", tensors: Sequence[str] = (), check_steps: int = 100,
                 last_checkpoint: Callable[[], Any] | None = None) -> None:
        self._loss, self._names, self._check_steps = loss, list(tensors), check_steps
        self._last_checkpoint = last_checkpoint

    def _setup_graph(self) -> None:
        gradients = reversed(named_gradients(self.graph))       # from the output back to the input
        watched = [*self._tower_tensors(), *((f"gradient of {name}", gradient) for name, gradient in gradients)]
        self._watched = [name for name, _ in watched]
        self._flags = all_finite([tensor for _, tensor in watched])
        state = graph_state(self.graph)
        self._hint = ""
        if state.update_skipped is not None:
            self._flags |= state.update_skipped
            self._hint = _LOSS_SCALE_HINT.format(state.settings.loss_scaling.least)
        variables = tf1.trainable_variables()
        self._variables = [f"variable {v.op.name}" for v in variables]
        with tf1.name_scope("variables"):
            self._variable_flags = all_finite(variables) if variables else None
        self._last_flags: np.ndarray | None = None
        self.trainer.diverged = False

    def _before_train(self) -> None:
        self.check_variables()

    def _before_run(self, _: Any) -> list[Tensor]:
        return [self._flags]

    def _after_run(self, _: Any, values: Any) -> None:
        self._last_flags = values.results[0]  # bool [watched tensors]

    def _trigger_step(self) -> None:
        if self._last_flags is not None:
            self._refuse_bad(self._watched, self._last_flags, self._hint)
        if self._check_steps and self.global_step % self._check_steps == 0:
            self.check_variables()

    def check_variables(self) -> None:
        """Check every trainable variable now.

        Raises:
            DivergenceError: a variable is not finite.
        """
        if self._variable_flags is not None:
            self._refuse_bad(self._variables, self.trainer.sess.run(self._variable_flags))

    def _refuse_bad(self, names: Sequence[str], finite: np.ndarray, hint: str = "") -> None:
        if finite.all():
            return
        self.trainer.diverged = True
        name = names[int(np.argmin(finite))]
        checkpoint = self._last_good_checkpoint()
        raise DivergenceError(
            f"Training diverged at step {self.global_step}: the {name} is not finite (NaN or infinite). "
            + (f"The last good checkpoint is {checkpoint}, and nothing was saved after it; "
               if checkpoint else "No checkpoint was saved before; ")
            + hint + "lower optimizer.learning_rate, raise schedule.warmup_steps or set "
            "train.clip_norm (for example to 1.0), and start again.")

    def _last_good_checkpoint(self) -> Any:
        if self._last_checkpoint is not None:
            return self._last_checkpoint()
        latest = getattr(find_saver(self.trainer), "latest", None)
        return latest() if latest is not None else None

    def _tower_tensors(self) -> list[tuple[str, Tensor]]:
        """Return (readable name, tensor) of the loss and the named tensors, in each training tower."""
        towers = training_towers(self.trainer)
        costs = [] if self._loss else [cost for cost in (tower.output for tower in towers) if _is_cost(cost)]
        watched = _by_tower("loss", costs)
        for name in [*([] if costs else [self._loss or "loss"]), *self._names]:
            try:
                if towers:
                    tensors = [tower.get_tensor(name) for tower in towers]
                else:
                    tensors = [self.graph.get_tensor_by_name(name if ":" in name else f"{name}:0")]
            except KeyError:
                raise SettingsError(f"NaNGuard needs the tensor '{name}', which is not in the training tower: give a "
                                    "tensor this name, or name another one (NaNGuard(loss=...)).") from None
            watched += _by_tower(f"tensor {name}" if name in self._names else "loss", tensors)
        return watched


def _by_tower(label: str, tensors: list[Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"{label} of tower {index}" if len(tensors) > 1 else label, tensor)
            for index, tensor in enumerate(tensors)]


def _is_cost(output: Any) -> bool:
    """Return whether a tower function returned a cost; only with `SingleCostTrainer` it must."""
    return isinstance(output, tf.Tensor) and output.shape.rank == 0 and output.dtype.is_floating
