"""The note on a resumed run with another limit: automatic settings that keep their values for the old limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towernmt.callbacks.schedules import noam
from towernmt.core.settings import flatten
from towernmt.run.rules.update_rules import learns_faster_from_mixture
from towernmt.run.run_settings import Settings

LIMITS = ("train.steps", "train.epochs", "train.minutes")
DEPENDS_ON_LIMIT = (
    "schedule.name", "schedule.warmup_steps", "model.residual_dropout", "model.embedding_dropout",
    "optimizer.weight_decay", "validation.steps", "validation.minutes", "validation.sentences", "train.stop_patience",
    "checkpoint.steps", "checkpoint.minutes", "checkpoint.average")
"""Automatic settings that always depend on the training limit, and that can change within a run."""


def note_of_changed_limit(recorded: Mapping[str, Any], old: Settings, new: Settings, has_general_data: bool) -> str:
    """Return a sentence on automatic settings that keep their values although the limit has changed, or "".

    Args:
        recorded: automatic settings of the run's start.
        old: saved settings of the run.
        new: settings with which the run resumes.
        has_general_data: whether general data are mixed in.
    """
    old_values, new_values = flatten(old), flatten(new)
    changes = [f"{key} changed from {old_values[key]:g} to {new_values[key]:g}" for key in LIMITS
               if new_values[key] != old_values[key]]
    share = "data.general_share"
    has_old_share = bool(new.init.checkpoint) and share in recorded and new_values[share] == recorded[share]
    # The share, if it is automatic, and the rate depend on the passes within the limit.
    has_rate_of_mixture = (has_general_data and bool(new.init.checkpoint) and learns_faster_from_mixture(new)
                           and (has_old_share or new_values[share] == 0.5))
    has_factor_of_warmup = new.schedule.name == noam.__name__ and "schedule.warmup_steps" in recorded
    keys = [*DEPENDS_ON_LIMIT, *(["optimizer.learning_rate"] if has_rate_of_mixture or has_factor_of_warmup else [])]
    unchanged = [f"{key}={new_values[key]}" for key in keys if key in recorded and new_values.get(key) == recorded[key]]
    notes = []
    if unchanged:
        notes.append(f"These automatic settings keep their old values: {', '.join(unchanged)}. Use --set to change "
                     "them.")
    if has_general_data and has_old_share:
        notes.append(f"{share}={new_values[share]} was chosen for the old limit, too, and only a new run can have "
                     "another share.")
    return " ".join([f"{', '.join(changes)}.", *notes]) if changes and notes else ""
