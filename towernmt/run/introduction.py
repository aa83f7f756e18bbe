"""What a run says first: what is trained on what, where it is kept, how to watch it and how to stop it."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.core.tf_compat import tf1
from towernmt.dataflow.order.training_data import TrainingData
from towernmt.run.directory import RunDirectory
from towernmt.run.settings import Settings


class Introduction(Callback):
    """One paragraph in the log when training begins, or goes on."""

    def __init__(self, settings: Settings, data: TrainingData, run: RunDirectory, validated: bool) -> None:
        """
        Args:
            settings: of the run.
            data: what it trains on.
            run: where it is kept.
            validated: whether a validator is among the callbacks.
        """
        self._settings, self._data, self._run, self._validated = settings, data, run, validated

    def _setup_graph(self) -> None:
        # Before the callbacks behind this one build graphs of their own.
        self._parameters = sum(int(np.prod(v.shape.as_list())) for v in tf1.trainable_variables())

    def _before_train(self) -> None:
        logger.info(self._text())

    def _text(self) -> str:
        s, run = self._settings.train, self._run.path
        begin = "Training" if not self.global_step else f"Going on behind step {self.global_step} with"
        sentences = [
            f"{begin} a {self._settings.architecture} of {self._parameters:,} parameters on {_towers(self.trainer)}.",
            f"Data: {self._data.directory}{self._amount()}.",
            self._validation(),
            f"Until {_limits(s)}." if _limits(s) else "Without a limit: until Ctrl-C.",
            f"The run is in {run}, its whole log in {self._run.log / 'log.log'}.",
            f"To watch it: tensorboard --logdir {shlex.quote(str(self._run.log))}.",
            "To stop it: Ctrl-C, which saves a checkpoint; the same command goes on from there."]
        return " ".join(sentence for sentence in sentences if sentence)

    def _amount(self) -> str:
        pairs = getattr(self._data, "pairs", None)
        if not isinstance(pairs, int):
            return ", as it is read"
        s = self._settings.data
        return f", {pairs:,} pairs, in batches of {s.batch_tokens:,} {s.batch_type} tokens"

    def _validation(self) -> str:
        s = self._settings.validation
        if self._validated:
            sets = [validation.first(s.sentences) for validation in self._data.validation_sets]
            count = sum(len(validation.source) for validation in sets)
            every = [f"{s.steps:,} updates" if s.steps else "",
                     f"{s.minutes:g} minutes" if s.minutes else ""]
            return f"Validation: {count:,} sentences every {' or '.join(text for text in every if text)}."
        why = "validation.steps=0" if self._data.validation_sets else "The data have no validation text"
        return f"{why}: there will be no BLEU and no best checkpoint."


def _towers(trainer: Any) -> str:
    devices = list(getattr(trainer, "tower_devices", []))
    kind = "CPU" if all("cpu" in device.lower() for device in devices) else "GPU"
    return f"{len(devices)} {kind} tower{'s' if len(devices) > 1 else ''}"


def _limits(train: Any) -> str:
    limits = [f"update {train.steps:,}" if train.steps else "",
              f"the end of epoch {train.epochs:,}" if train.epochs else "",
              f"{train.minutes:g} minutes have passed" if train.minutes else "",
              f"{train.stop_patience} validations have found nothing better" if train.stop_patience else ""]
    return " or ".join(limit for limit in limits if limit)
