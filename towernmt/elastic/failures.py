"""How often a training may be begun again."""

from __future__ import annotations


class Failures:
    """Counts the failed attempts since the last one that made a checkpoint.

    Args:
        most: that many may fail one after the other, each without a checkpoint of its own; the next is the last.
        step: of the run's last checkpoint; -1 if there is none.
    Attributes:
        count: failures so far.
    """

    def __init__(self, most: int, step: int) -> None:
        self._most, self._step, self.count = most, step, 0

    def may_go_on(self, step: int) -> bool:
        """Count a failure, and say whether a new attempt may follow.

        Args:
            step: of the run's last checkpoint by now.
        """
        if step > self._step:
            self._step, self.count = step, 0
        self.count += 1
        return self.count <= self._most
