"""A run that goes on keeps what was chosen when it began: here that is read, and told where the limit is another."""

from __future__ import annotations

from typing import Any

from towernmt.chosen.record import CHOSEN
from towernmt.core.settings import flatten, load_yaml
from towernmt.run.directory import RunDirectory
from towernmt.run.settings import Settings

_LIMITS = ("train.steps", "train.epochs", "train.minutes")
_BY_LIMIT = ("schedule.name", "schedule.warmup_steps", "model.residual_dropout", "model.embedding_dropout",
             "validation.steps", "validation.minutes", "validation.sentences", "train.stop_patience",
             "checkpoint.steps", "checkpoint.minutes", "checkpoint.average")
"""What is chosen by a limit, and can be changed within a run."""


def chosen_towers(run: RunDirectory) -> int | None:
    """The number of towers on the processors that was chosen for a run; None: none was.

    With another number its dropout would be drawn otherwise, and it would not end as a run that was never stopped.
    """
    towers = _chosen(run).get("--towers")
    return towers if isinstance(towers, int) else None


def note_of_other_limit(run: RunDirectory, settings: Settings) -> str:
    """A sentence on what stays as it was chosen for another limit; "" where the limit is the same, or nothing stays.

    Args:
        settings: with which the run goes on.
    """
    before, now, chosen = flatten(run.settings_like(settings)), flatten(settings), _chosen(run)
    others = [f"{key}={now[key]:g} (before: {before[key]:g})" for key in _LIMITS if now[key] != before[key]]
    stays = [f"{key}={now[key]}" for key in _BY_LIMIT if key in chosen and now.get(key) == chosen[key]]
    if not others or not stays:
        return ""
    return (f"The limit is another: {', '.join(others)}. What was chosen by the one before stays, unless --set changes "
            f"it: {', '.join(stays)}.")


def _chosen(run: RunDirectory) -> dict[str, Any]:
    """By key of a setting or option, the value that was chosen when the run began."""
    path = run.path / CHOSEN
    told = load_yaml(path) if path.is_file() else {}
    return {key.removesuffix(".value"): value for key, value in told.items() if key.endswith(".value")}
