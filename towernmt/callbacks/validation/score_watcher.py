"""A callback that acts on each new value of a score, such as `validation_bleu`."""

from __future__ import annotations

from towernmt.callbacks.stateful import StatefulCallback


class ScoreWatcher(StatefulCallback):
    """Hands every new value of a monitored scalar to `_on_score`, once.

    It looks after each step, and before each epoch: a resumed run may first make a missing validation of the step that
    it resumes from. Put it after the callback that puts the score (`trainer.monitors.put_scalar`), and before the
    checkpoint saver, so that a checkpoint holds what the score changed.
    """

    def __init__(self, metric: str) -> None:
        """
        Args:
            metric: name of the scalar.
        """
        self.metric = metric
        self._consumed = 0

    def _on_score(self, step: int, score: float) -> None:
        """Override: `score` was put when `step` updates had been made."""
        raise NotImplementedError

    def observe(self) -> None:
        """Hand over the values that were put since the last call."""
        history = self.trainer.monitors.get_history(self.metric)
        while self._consumed < len(history):
            step, score = history[self._consumed]
            self._consumed += 1
            self._on_score(int(step), float(score))

    def _before_epoch(self) -> None:
        self.observe()

    def _trigger_step(self) -> None:
        self.observe()
