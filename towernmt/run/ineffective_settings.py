"""Specified settings that have no effect with the other settings and the data of a run: refused, or reported.

To add one, add it to `CONDITIONS`. Settings `search.*` are not in it, because `towernmt translate` combines those of
the run with its own options. Settings whose effect depends on the machine, such as those of several GPUs, are not in it
either: the same settings train on different machines. The search for `data.memory_gb` itself reports that it replaces
`data.batch_tokens`, and the introduction of a run reports that it has no validation and no best checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from towernmt.callbacks.schedules import piecewise
from towernmt.core.errors import SettingsError
from towernmt.core.setting_values import assigned
from towernmt.core.settings import flatten
from towernmt.run.run_settings import Settings, default_settings

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData

COMMAND_LINE = "--set"
"""Origin of the values of the command line."""


@dataclass(frozen=True)
class Condition:
    """A condition without which settings have no effect.

    Attributes:
        keys: dotted keys of the settings, separated by spaces.
        holds: whether it holds for all settings by dotted key, and for the data of a run, if they are known.
        causes: dotted keys of the settings on which it depends, separated by spaces; or the option.
        remedy: an imperative, after which it holds.
    """

    keys: str
    holds: Callable[[Mapping[str, Any], TrainingData | None], bool]
    causes: str
    remedy: str

    def reason(self, values: Mapping[str, Any]) -> str:
        """Return why the settings have no effect, as the end of a sentence.

        Args:
            values: all settings of the run, by dotted key.
        """
        if self.causes.startswith("--") or values.get(self.causes) == "":
            return f"without {self.causes}"
        return f"with {' and '.join(f'{key}={assigned(values[key])}' for key in self.causes.split())}"


def _needs_value(keys: str, cause: str, *accepted: str) -> Condition:
    """Return the condition that the setting `cause` has one of these values; see `Condition`."""
    *others, last = accepted
    names = f"{', '.join(others)} or {last}" if others else last
    return Condition(keys, lambda values, data: values[cause] in accepted, cause, f"set {cause} to {names}")


def _needs_any(keys: str, causes: str, remedy: str) -> Condition:
    """Return the condition that one of the settings `causes` is neither 0, nor false, nor empty; see `Condition`."""
    return Condition(keys, lambda values, data: any(values[cause] for cause in causes.split()), causes, remedy)


def _is_mixed(values: Mapping[str, Any], data: TrainingData | None) -> bool:
    from towernmt.dataflow.batches.mixed_data import MixedData

    return isinstance(data, MixedData)


def _has_validation_text(values: Mapping[str, Any], data: TrainingData | None) -> bool:
    return data is None or bool(data.validation_sets)


def _is_read_in_windows(values: Mapping[str, Any], data: TrainingData | None) -> bool:
    from towernmt.dataflow.batches.training_data import StreamedCorpus

    return data is None or isinstance(data, StreamedCorpus) or bool(
        values["data.subword_sampling"] or values["data.modifiers"])


NEEDS_GENERAL_DATA = Condition("data.general_share", _is_mixed, "--general", "pass --general with prepared data")
CONDITIONS = (
    NEEDS_GENERAL_DATA,
    _needs_any("data.subword_alpha data.subword_nbest", "data.subword_sampling", "set data.subword_sampling=true"),
    Condition("data.window", _is_read_in_windows, "data.subword_sampling data.modifiers", "set one of them"),
    _needs_any("init.new init.left_out", "init.checkpoint", "pass --start, or set init.checkpoint"),
    _needs_value("train.loss_scale", "train.precision", "float16"),
    Condition("optimizer.learning_rate", lambda values, data: values["schedule.name"] != piecewise.__name__,
              "schedule.name", "set schedule.values"),
    _needs_value("optimizer.beta1 optimizer.beta2 optimizer.epsilon", "optimizer.name", "adam", "adamw", "lazyadam",
                 "lamb", "muon"),
    _needs_value("optimizer.weight_decay", "optimizer.name", "adamw", "lamb", "muon"),
    _needs_value("optimizer.muon_momentum optimizer.muon_scale optimizer.muon_iterations optimizer.muon_interval",
                 "optimizer.name", "muon"),
    _needs_value("optimizer.momentum optimizer.nesterov", "optimizer.name", "sgd"),
    _needs_value("optimizer.adafactor_relative optimizer.adafactor_clip optimizer.adafactor_momentum",
                 "optimizer.name", "adafactor"),
    _needs_value("schedule.decay_steps", "schedule.name", "linear", "cosine", "exponential"),
    _needs_value("schedule.end_learning_rate", "schedule.name", "linear", "cosine", "budget"),
    _needs_value("schedule.decay_rate schedule.staircase", "schedule.name", "exponential"),
    _needs_value("schedule.boundaries schedule.values", "schedule.name", "piecewise"),
    _needs_value("schedule.metric schedule.patience schedule.factor schedule.minimum", "schedule.name", "plateau"),
    _needs_any("train.stop_patience", "validation.steps validation.minutes", "set one of them above 0"),
    Condition("train.stop_patience", _has_validation_text, "--valid-source", "prepare the data with validation text"),
    _needs_value("log.tracker_project", "log.tracker", "mlflow", "wandb", "trackio"),
    _needs_value("recovery.rollbacks recovery.rollback_rate", "recovery.on_divergence", "rollback"))
"""The conditions without which settings have no effect."""


def notes_of_ineffective_settings(settings: Settings, overrides: Iterable[tuple[str, Mapping[str, Any]]],
                                  data: TrainingData | None, conditions: Iterable[Condition] = CONDITIONS
                                  ) -> list[str]:
    """Return a sentence for each setting of a file that has no effect, and refuse such a setting of the command line.

    A value of 0, false or nothing turns something off, and is accepted. A file may contain all settings of an earlier
    run, so its default values are accepted, too.

    Args:
        settings: all settings of the run, automatic ones included.
        overrides: for each source of specified values, its name for messages, and dotted key to value.
        data: training data; None if they are not prepared yet, and have no general data.
        conditions: the conditions to check.

    Raises:
        SettingsError: names the first setting of the command line that has no effect.
    """
    origins = {key: origin for origin, specified in overrides for key in specified}
    values, defaults, notes = flatten(settings), flatten(default_settings()), []
    for condition in conditions:
        keys = [key for key in condition.keys.split() if key in origins and values[key]]
        if not keys or condition.holds(values, data):
            continue
        for key in keys:
            sentence = f"{origins[key]}: {key}={assigned(values[key])} has no effect {condition.reason(values)}"
            if origins[key] == COMMAND_LINE:
                raise SettingsError(f"{sentence}: {condition.remedy}, or leave it out.")
            if values[key] != defaults[key]:
                notes.append(f"{sentence}: {condition.remedy} to use it.")
    return notes
