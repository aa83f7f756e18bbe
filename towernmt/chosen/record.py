"""What was chosen, told when a run begins and kept in its directory as `chosen.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.chosen.choice import CHOSEN, Choice
from towernmt.core.files.atomic_files import write_text
from towernmt.core.world import present_world


class ChosenRecord(Callback):
    """Tells what was chosen, and writes it into the run's directory."""

    def __init__(self, choices: Sequence[Choice], run: Path) -> None:
        """
        Args:
            choices: that were made for the run.
            run: its directory.
        """
        self._choices, self._path = choices, run / CHOSEN

    def _before_train(self) -> None:
        for choice in self._choices:
            logger.info(f"Chosen: {choice.key}={choice.value}, as {choice.reason}.")
        if present_world().is_chief:
            told = {choice.key: {"value": choice.value, "reason": choice.reason} for choice in self._choices}
            write_text(self._path, yaml.safe_dump(told, sort_keys=False))
