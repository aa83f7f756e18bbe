"""A run that goes on keeps what was chosen when it began: here that is read, and told where the limit is another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towernmt.chosen.choice import CHOSEN
from towernmt.core.settings import flatten, load_yaml
from towernmt.run.directory import RunDirectory
from towernmt.run.settings import Settings

_LIMITS = ("train.steps", "train.epochs", "train.minutes")
BY_LIMIT = ("schedule.name", "schedule.warmup_steps", "model.residual_dropout", "model.embedding_dropout",
            "validation.steps", "validation.minutes", "validation.sentences", "train.stop_patience",
            "checkpoint.steps", "checkpoint.minutes", "checkpoint.average")
"""What is chosen by a limit, and can be changed within a run."""


def chosen_for(run: RunDirectory) -> dict[str, Any]:
    """By key of a setting or option, the value that was chosen when a run began; nothing where nothing was.

    `--towers` is no setting, so it is kept here alone: with another number dropout would be drawn otherwise, and the
    run would not end as one that was never stopped.
    """
    path = run.path / CHOSEN
    told = load_yaml(path) if path.is_file() else {}
    return {key.removesuffix(".value"): value for key, value in told.items() if key.endswith(".value")}


def note_of_other_limit(chosen: Mapping[str, Any], former: Settings, settings: Settings) -> str:
    """A sentence on what stays as it was chosen for another limit; "" where the limit is the same, or nothing stays.

    Args:
        chosen: for the run.
        former: the settings with which it was trained so far.
        settings: with which it goes on.
    """
    before, now = flatten(former), flatten(settings)
    others = [f"{key}={now[key]:g} (before: {before[key]:g})" for key in _LIMITS if now[key] != before[key]]
    stays = [f"{key}={now[key]}" for key in BY_LIMIT if key in chosen and now.get(key) == chosen[key]]
    if not others or not stays:
        return ""
    return (f"The limit is another: {', '.join(others)}. What was chosen by the one before stays, unless --set changes "
            f"it: {', '.join(stays)}.")
