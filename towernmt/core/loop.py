"""How many steps an epoch has: tensorpack's loop, with epochs aligned to the global step."""

from __future__ import annotations

from tensorpack.train.base import TrainLoop


class ResumableLoop(TrainLoop):
    """tensorpack's loop; but a run that resumes in mid-epoch finishes that epoch, and does not begin another one.

    Its `local_step` counts the steps that this run makes in the epoch, from 0 to `steps_per_epoch - 1`.
    """

    _steps_per_epoch = 1
    _global_step = 0
    _epoch = 0
    _began: int | None = None
    """The global step at which the present epoch began, or this run within it; None before the first."""

    def config(self, steps_per_epoch: int, starting_epoch: int, max_epoch: int) -> None:
        """tensorpack's."""
        super().config(steps_per_epoch, starting_epoch, max_epoch)
        self._began = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps that this run makes in the present epoch; constant within the epoch. tensorpack's callbacks find the
        last step of an epoch by it. Before the first epoch: the steps from the present one to the epoch's end.
        """
        began = self._global_step if self._began is None else self._began
        return self._steps_per_epoch - began % self._steps_per_epoch

    @steps_per_epoch.setter
    def steps_per_epoch(self, steps: int) -> None:
        self._steps_per_epoch = max(1, steps)

    @property
    def _epoch_num(self) -> int:
        return self._epoch

    @_epoch_num.setter
    def _epoch_num(self, number: int) -> None:
        """tensorpack's main loop sets it where an epoch begins."""
        self._epoch, self._began = number, self._global_step
