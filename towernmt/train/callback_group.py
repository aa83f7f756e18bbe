"""tensorpack's group of callbacks, in which what fails at the end of training fails the program."""

from __future__ import annotations

from tensorpack.callbacks.group import Callbacks
from tensorpack.utils import logger


class CallbackGroup(Callbacks):
    """All callbacks of a trainer.

    tensorpack prints what a callback raises in `after_train` and forgets it: a last checkpoint that could
    not be written would look like success. Here the others still end, and the first such error is kept.

    Attributes:
        error: the first exception of an `after_train`, or None.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        """Take the place of a group that was set up."""
        super().__init__(callbacks.cbs)
        self.error: Exception | None = None

    def _after_train(self) -> None:
        for callback in self.cbs:
            try:
                callback.after_train()
            except Exception as error:
                if self.error is None:
                    self.error = error
                else:
                    self.log(error)

    def log(self, error: Exception) -> None:
        """Write an error into the log that will not be raised, because another one is."""
        logger.error(f"At the end of training: {error}")
