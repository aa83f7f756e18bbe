"""Callbacks that report a run when it begins: its size, data and limit; and that record its settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.checkpoint.records import read_record
from towernmt.core.files import write_text
from towernmt.core.tf_compat import tf1
from towernmt.core.world import current_world
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.run.automatic_settings import AUTOMATIC_SETTINGS_FILE
from towernmt.run.directory import RunDirectory
from towernmt.run.rules.automatic_value import AutomaticSetting
from towernmt.run.run_settings import Settings


class Introduction(Callback):
    """Logs one paragraph about the run when training begins or resumes.

    Args:
        settings: settings of the run.
        data: training data.
        run: directory of the run.
        decides: whether validation chooses the best checkpoint, and may end the run.
    """

    def __init__(self, settings: Settings, data: TrainingData, run: RunDirectory, decides: bool) -> None:
        self._settings, self._data, self._run, self._decides = settings, data, run, decides

    def _setup_graph(self) -> None:
        # Later callbacks build more graphs.
        self._parameters = sum(int(np.prod(v.shape.as_list())) for v in tf1.trainable_variables())

    def _before_train(self) -> None:
        logger.info(self._text())

    def _text(self) -> str:
        run, limits = self._run.path, _limits(self._settings.train, self._decides)
        begin = "Training" if not self.global_step else f"Resuming after step {self.global_step} with"
        sentences = [
            f"{begin} a {self._settings.architecture} of {self._parameters:,} parameters on {_towers(self.trainer)}.",
            f"Data: {self._data.directory}{self._amount()}.",
            self._validation(),
            f"Until {limits}." if limits else "Without a limit: until Ctrl-C.",
            f"The run is in {run}, its complete log in {self._run.log / 'log.log'}.",
            f"To watch it: tensorboard --logdir {shlex.quote(str(self._run.log))}.",
            "To stop it: Ctrl-C, which saves a checkpoint; the same command resumes from there."]
        return " ".join(sentence for sentence in sentences if sentence)

    def _amount(self) -> str:
        pairs = getattr(self._data, "pairs", None)
        if not isinstance(pairs, int):
            return ", read during training"
        data_settings = self._settings.data
        unit = "sentences" if data_settings.batch_type == "sentences" else f"{data_settings.batch_type} tokens"
        return f", {pairs:,} pairs, in batches of {data_settings.batch_tokens:,} {unit}"

    def _validation(self) -> str:
        validation, sets = self._settings.validation, self._data.validation_sets
        intervals = [f"{validation.steps:,} updates"] if validation.steps else []
        intervals += [f"{validation.minutes:g} minutes"] if validation.minutes else []
        if not sets or not intervals:
            reason = "validation.steps=0" if sets else "The data have no validation text"
            return f"{reason}: the run has no BLEU{self._remaining_best() or ' and no best checkpoint'}."
        count = sum(len(validation_set.first(validation.sentences).source) for validation_set in sets)
        text = f"Validation: {count:,} sentences every {' or '.join(intervals)}"
        if self._decides:
            return f"{text}{'' if self._settings.checkpoint.keep_best else self._remaining_best()}."
        return (f"{text}, all of them of --general. Their scores neither choose the best checkpoint nor stop training, "
                "because the unchanged model may have the best ones: prepare --data with --valid-source and "
                f"--valid-target, or set validation.metric_set={sets[0].name}.")

    def _remaining_best(self) -> str:
        """Return a clause on the best checkpoint of earlier validations, which no later one replaces; "" without it."""
        entries = read_record(self._run.best)
        return "" if not entries else (f", and the best checkpoint remains that of step {entries[0].step}; pass "
                                       "--checkpoint last to translate with the last one")


def _towers(trainer: Any) -> str:
    devices = list(getattr(trainer, "tower_devices", []))
    kind = "CPU" if all("cpu" in device.lower() for device in devices) else "GPU"
    return f"{len(devices)} {kind} tower{'s' if len(devices) > 1 else ''}"


def _limits(train: Any, decides: bool) -> str:
    limits = [f"update {train.steps:,}" if train.steps else "",
              f"the end of epoch {train.epochs:,}" if train.epochs else "",
              f"{train.minutes:g} minutes have passed" if train.minutes else "",
              f"{train.stop_patience} validations have no better score" if train.stop_patience and decides else ""]
    return " or ".join(limit for limit in limits if limit)


class SettingsRecord(Callback):
    """Writes the settings and vocabularies of the run when training begins.

    The graph is built by then, and its variables have their values. So settings with which a run cannot begin or resume
    are not recorded, and the next start does not take them from the run.

    Args:
        settings: settings to record.
        data: training data.
        run: directory of the run.
    """

    def __init__(self, settings: Settings, data: TrainingData, run: RunDirectory) -> None:
        self._settings, self._data, self._run = settings, data, run

    def _before_train(self) -> None:
        self._run.record(self._settings, self._data)


class AutomaticSettingsRecord(Callback):
    """Logs the automatic settings when training begins, and writes them into the directory of the run.

    A number of towers that the user specifies is written, too, because a resumed run needs the same number.

    Args:
        automatic: automatic settings of the run.
        run: directory of the run.
        towers: number of towers on the CPU; None on GPUs.
    """

    def __init__(self, automatic: Sequence[AutomaticSetting], run: Path, towers: int | None) -> None:
        self.automatic, self._towers, self._path = automatic, towers, run / AUTOMATIC_SETTINGS_FILE

    def _before_train(self) -> None:
        for setting in self.automatic:
            logger.info(setting.sentence)
        if current_world().is_chief:
            content = {setting.key: {"value": setting.value, "reason": setting.reason} for setting in self.automatic}
            if self._towers is not None:
                content.setdefault("--towers", {"value": self._towers, "reason": "it was specified"})
            write_text(self._path, yaml.safe_dump(content, sort_keys=False))
