"""Settings that a user does not specify get automatic values by rules, each with its evidence.

The rules (`towernmt.run.rules`) depend on the corpus, the training limit, the model and the machine. They are applied
in sequence, each to the result of the previous ones, so that automatic settings follow those that a user specifies. The
result is logged when a run begins, and saved in its directory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from towernmt.core.settings import all_keys, apply_overrides
from towernmt.run.rules.automatic_value import AutomaticSetting, Rule
from towernmt.run.rules.batch_rules import batch, mixing, sampling
from towernmt.run.rules.model_rules import (
    dropout_rates,
    initial_embeddings,
    initial_model,
    initial_outputs,
    separate_tables,
    softmax_sample,
    weight_decay,
)
from towernmt.run.rules.update_rules import learning_rate, optimizer, precision, schedule
from towernmt.run.rules.validation_rules import averaging, deciding_set, stopping, validation
from towernmt.run.run_settings import Settings
from towernmt.run.training_conditions import TrainingConditions

AUTOMATIC_SETTINGS_FILE = "automatic.yaml"
"""File in the directory of a run: its automatic settings with their reasons."""
RULES: tuple[Rule, ...] = (
    initial_model, precision, optimizer, initial_outputs, separate_tables, initial_embeddings, batch, mixing,
    sampling, softmax_sample, schedule, learning_rate, validation, deciding_set, stopping, dropout_rates,
    weight_decay, averaging)
"""All rules, in the order in which they are applied."""


def apply_automatic_settings(settings: Settings, conditions: TrainingConditions, specified: Collection[str],
                             rules: Sequence[Rule] = RULES) -> tuple[Settings, list[AutomaticSetting]]:
    """Set automatic values for the settings that a user does not specify.

    Args:
        settings: specified settings.
        conditions: training conditions.
        specified: dotted keys that the user specifies.
        rules: the rules to apply.

    Returns:
        All settings, and the automatic ones, including those that are equal to the defaults.
    """
    known, automatic = set(all_keys(settings)), []
    for rule in rules:
        for setting in list(rule(settings, conditions)):
            if setting.key in known and setting.key not in specified and _steps_key(setting.key) not in specified:
                settings = apply_overrides(settings, {setting.key: setting.value}, "automatic setting")
                automatic.append(setting)
    return settings, automatic


def _steps_key(key: str) -> str:
    """Return `validation.steps` for `validation.minutes`, and so on; return other keys unchanged.

    If the user sets an interval in updates, no automatic interval in minutes is added.
    """
    group, _, name = key.partition(".")
    return f"{group}.steps" if name == "minutes" else key
