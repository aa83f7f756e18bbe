"""Callbacks whose memory survives a resume: what they know goes into the checkpoint and comes back."""

from __future__ import annotations

from typing import Any

from tensorpack.callbacks import Callback


class StatefulCallback(Callback):
    """A callback with state that the checkpoint keeps (best scores, elapsed time, patience, ...).

    `CheckpointSaver` collects `state()` of every such callback of the trainer, and gives it back through
    `restore_state()` before training goes on. `state_key` names it in the checkpoint and must be unique.
    """

    state_key: str = ""

    def state(self) -> dict[str, Any]:
        """What must be remembered, as JSON-able values."""
        raise NotImplementedError

    def restore_state(self, state: dict[str, Any]) -> None:
        """Take back what `state()` returned when the checkpoint was written."""
        raise NotImplementedError
