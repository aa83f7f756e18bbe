"""Reports the updates that were skipped for an overflow in float16, and the changes of the loss scale."""

from __future__ import annotations

from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor


class LossScaleMonitor(Callback):
    """Warns of each skipped update; does nothing where losses are not scaled.

    Scalars, when they change: `loss_scale` (of the next step), `skipped_updates` (since step 0, over all resumes).
    """

    def _setup_graph(self) -> None:
        self._watched = graph_state().loss_scale
        self._values: Any = None

    def _before_run(self, _: Any) -> list[Tensor]:
        w = self._watched
        return [] if w is None else [w.finite, w.scale, w.skipped, w.next_scale]

    def _after_run(self, _: Any, values: Any) -> None:
        self._values = values.results

    def _trigger_step(self) -> None:
        if not self._values:
            return
        (finite, scale, skipped, next_scale), self._values = self._values, None
        if not finite:
            logger.warning(f"Step {self.global_step}: gradients overflowed in float16 at a loss scale of {scale:g}; "
                           f"the update was skipped ({skipped + 1} so far), and the scale is {next_scale:g} now.")
            self.trainer.monitors.put_scalar("skipped_updates", int(skipped) + 1)
        if scale != next_scale:
            self.trainer.monitors.put_scalar("loss_scale", float(next_scale))
