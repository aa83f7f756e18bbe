"""Rules for validations, checkpoints, the end of a run without a limit, and the average at the end."""

from __future__ import annotations

from collections.abc import Iterator

from towernmt.callbacks.validation_metrics import MEAN_OF_SETS
from towernmt.run.rules.automatic_value import AutomaticSetting, round_down, updates_before_patience_ends
from towernmt.run.run_settings import Settings
from towernmt.run.training_conditions import TrainingConditions


def validation(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Validate and save about ten times in a run with a time limit, because each validation takes time.

    The interval is at most half an hour, because a killed run loses the updates since its last checkpoint. A run that
    starts from a trained model validates before its first update, too, and without a time limit about once in a pass or
    in a tenth of the updates: a small corpus changes a trained model within a few hundred updates.
    """
    minutes = conditions.minutes(settings)
    if settings.init.checkpoint and conditions.validation_pairs:
        reason = ("the run has to improve on the score of the trained model" if conditions.has_deciding_set(settings)
                  else "the later scores show how much the trained model forgets")
        yield AutomaticSetting("validation.at_start", True, reason)
    if minutes is None:
        if settings.init.checkpoint:
            yield from _intervals_of_trained_model(settings, conditions)
        return
    interval = min(30.0, max(1.0, round(minutes / 10, 1)))
    reason = "the run then has about ten" if interval < 30 else "a killed run loses the time since the last checkpoint"
    yield AutomaticSetting("checkpoint.steps", 0, "the interval of checkpoints is in minutes")
    yield AutomaticSetting("checkpoint.minutes", interval, reason)
    if conditions.validation_pairs:
        yield AutomaticSetting("validation.steps", 0, "the interval of validations is in minutes")
        yield AutomaticSetting("validation.minutes", interval, "checkpoints have the same interval")
        sentences = 200 if minutes < 20 else 500
        if conditions.validation_pairs > sentences and minutes < 120:
            yield AutomaticSetting("validation.sentences", sentences, "a short run has no time for more")


LEAST_INTERVAL = 50
"""Minimum number of updates between two automatic validations."""


def _intervals_of_trained_model(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    updates, usual = conditions.updates(settings), settings.validation.steps
    per_pass = conditions.updates_per_pass(settings)
    candidates = [number for number in (per_pass, None if updates is None else updates / 10) if number is not None]
    steps = max(LEAST_INTERVAL, round_down(min(candidates, default=usual)))
    if steps >= usual:
        return
    is_tenth = updates is not None and steps == round_down(updates / 10)
    reason = "the run then has about ten" if is_tenth else f"a pass has about {round_down(per_pass or 0):,} updates"
    for name in ("validation.steps", "checkpoint.steps") if conditions.validation_pairs else ("checkpoint.steps",):
        yield AutomaticSetting(name, steps, reason)


def deciding_set(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Let the mean over all validation sets decide if a trained model is trained further.

    If old and new text each have a set, a run does not count as better when it gains on the new text and loses as much
    on the old one. If only the old text has sets, none decides.
    """
    if settings.init.checkpoint and conditions.validation_sets > 1 and not conditions.has_only_general_sets:
        yield AutomaticSetting("validation.metric_set", MEAN_OF_SETS,
                               f"the trained model must remain good on all {conditions.validation_sets} sets")


def stopping(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Stop a run without a limit when its validation score no longer improves."""
    train, validated = settings.train, settings.validation.steps or settings.validation.minutes
    has_limit = train.steps or train.minutes or train.epochs
    if conditions.has_deciding_set(settings) and validated and not has_limit:
        yield AutomaticSetting("train.stop_patience", 10, "the run has no other limit")


AVERAGED_CHECKPOINTS = 5
"""Number of checkpoints to average at the end of training."""


def averaging(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Average the last five checkpoints; the average is kept if its validation score is better.

    A run with fewer checkpoints does not average, because the average would include its first ones
    (docs/notes/defaults.md, "The mean of the last checkpoints").
    """
    checkpoint, validated = settings.checkpoint, settings.validation.steps or settings.validation.minutes
    if not conditions.has_deciding_set(settings) or not validated:
        return
    if not checkpoint.keep_best or checkpoint.keep < AVERAGED_CHECKPOINTS:
        return
    count = _checkpoint_count(settings, conditions)
    if count >= AVERAGED_CHECKPOINTS:
        yield AutomaticSetting(
            "checkpoint.average", AVERAGED_CHECKPOINTS,
            f"the run writes about {round_down(count)} checkpoints, and validation decides whether the average is used")


def _checkpoint_count(settings: Settings, conditions: TrainingConditions) -> float:
    """Estimate the minimum number of checkpoints of a run; 0 if too little is known."""
    checkpoint, minutes = settings.checkpoint, conditions.minutes(settings)
    updates = conditions.updates(settings) or updates_before_patience_ends(settings)
    by_steps = updates / checkpoint.steps if checkpoint.steps else 0.0
    by_minutes = minutes / checkpoint.minutes if checkpoint.minutes and minutes else 0.0
    return max(by_steps, by_minutes)
