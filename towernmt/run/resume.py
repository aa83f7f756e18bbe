"""Check whether a run can be resumed with its settings and data, and whether it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towernmt.checkpoint.checkpoint_files import STATE, CheckpointState, latest_checkpoint, read_state, step_of
from towernmt.checkpoint.records import IMPORTED_MODEL, MADE_FROM
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import flatten
from towernmt.dataflow.batches.batch import Position
from towernmt.dataflow.batches.mixed_data import GENERAL_PAIRS
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.run.directory import RunDirectory, differing_vocabulary
from towernmt.run.run_settings import Settings, TrainSettings, affects_training_only

FIXED_GROUPS = ("model.",)
FIXED_KEYS = ("optimizer.name", "optimizer.ema_decay", "optimizer.adafactor_momentum", "train.only", "train.freeze")
"""Groups of settings and single settings that determine the variables of a checkpoint, so a resumed run keeps them."""


def check_resumable(run: RunDirectory, settings: Settings) -> None:
    """Refuse to resume a run with another architecture, or with other settings that determine its variables.

    A run that `towernmt import` or `towernmt grow` has made cannot be resumed, because it has never been trained.

    Raises:
        SettingsError: names the first setting that differs.
    """
    if not run.exists() or not run.checkpoints.is_dir():
        return
    if _was_never_trained(run):
        raise SettingsError(f"{run.path} holds an imported or grown model, which has no training to resume: pass it as "
                            "--start, and another --logdir for the new run.")
    run.check_model(settings.architecture)
    old, new = flatten(run.settings_like(settings)), flatten(settings)
    for key in old:
        fixed = key.startswith(FIXED_GROUPS) or key in FIXED_KEYS or key == _needs_new_slots(old, new)
        if fixed and not affects_training_only(key) and old[key] != new.get(key):
            raise SettingsError(f"{run.path} holds a run with {key}={old[key]}, not {new.get(key)}: restore that "
                                "setting to resume the run, or pass another --logdir for a new run.")


def _was_never_trained(run: RunDirectory) -> bool:
    """Return whether the last checkpoint of a run is that of an imported or grown model."""
    latest = latest_checkpoint(run.checkpoints)
    if latest is None or step_of(latest):
        return False
    return bool(read_state(latest).grown_from) or f"{MADE_FROM}.{IMPORTED_MODEL}" in run.saved_settings()


def _needs_new_slots(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the setting that needs slots of the optimizer which the checkpoints of the run lack, or ""."""
    interval = "optimizer.muon_interval"
    return interval if new["optimizer.name"] == "muon" and old[interval] == 1 < new[interval] else ""


def check_run_vocabulary(run: RunDirectory, data: TrainingData) -> None:
    """Refuse to resume a run on data with another vocabulary, in which an id may stand for a different word.

    Raises:
        SettingsError: the vocabularies differ.
    """
    if not run.exists() or not run.checkpoints.is_dir():
        return
    differing_file = differing_vocabulary(run.vocabulary, data)
    if differing_file:
        raise SettingsError(f"{run.path} was trained with another vocabulary than that of {data.directory} "
                            f"({differing_file} differs): pass the --data of the run, prepare the new data with the "
                            "run's vocabulary files, or pass another --logdir for a new run.")


def check_data(run: RunDirectory, data: TrainingData) -> None:
    """Refuse to resume a run on data other than its training data, because its position would be meaningless.

    Runs and data without a fingerprint are accepted.

    Raises:
        SettingsError: the data differ.
    """
    latest, fingerprint = latest_checkpoint(run.checkpoints), getattr(data, "fingerprint", None)
    state = read_state(latest) if latest is not None and run.exists() else None
    recorded = state.made_from.get("data") if state is not None else None
    if state is None or None in (recorded, fingerprint) or recorded == fingerprint:
        return
    old, new = state.position_settings, getattr(data, "position_settings", {})
    was_mixed, is_mixed = GENERAL_PAIRS in old, GENERAL_PAIRS in new
    alternative = f"in another --logdir with initial parameters from this run (--set init.checkpoint={run.path})."
    if was_mixed and not is_mixed:
        raise SettingsError(f"{run.path} was trained with other pairs mixed into those of --data: pass the same "
                            "--general (or --monolingual, or --source-monolingual) to resume it, or train without it "
                            f"{alternative}")
    if is_mixed and old and not was_mixed:
        raise SettingsError(f"{run.path} was trained without --general: leave out --general to resume it, or train "
                            f"with it {alternative}")
    options = "--data and --general" if is_mixed else "--data"
    raise SettingsError(f"{run.path} was trained on other data than {data.directory} now holds "
                        f"({state.changes(new) or 'their fingerprints differ'}): pass the data of the run as "
                        f"{options}, or train on the new data {alternative}")


def check_memory_limit(run: RunDirectory, settings: Settings) -> None:
    """Refuse a new search for `data.batch_tokens` inside an epoch, since the data position depends on the batch size.

    Call it before the search, which takes minutes.

    Raises:
        SettingsError: `data.memory_gb` has changed.
    """
    latest = latest_checkpoint(run.checkpoints)
    if latest is not None and run.exists() and read_state(latest).in_epoch:
        old_data = run.settings_like(settings).data
        raise SettingsError(
            f"data.memory_gb changed from {old_data.memory_gb:g} to {settings.data.memory_gb:g}, which changes "
            f"data.batch_tokens, but the data position in {latest / STATE} depends on it: set "
            f"data.memory_gb={old_data.memory_gb:g} to resume, or train in another --logdir with initial parameters "
            f"from this run (--set init.checkpoint={run.path}).")


def why_finished(run: RunDirectory, settings: TrainSettings, metric: str | None) -> str:
    """Return a sentence on why the run is finished, or "" if it is not.

    Args:
        run: directory of the run.
        settings: limits of the run.
        metric: scalar that early stopping watches; None without early stopping.

    Raises:
        CheckpointError: the last checkpoint's `state.json` is damaged.
    """
    latest = latest_checkpoint(run.checkpoints)
    if latest is None or not run.exists():
        return ""
    state = read_state(latest)
    limit = _limit_reached(state, settings, metric)
    if not limit or _lacks_validation(state):
        return ""
    return f"{run.path} is finished: {limit} at step {state.step}. To resume it, pass a higher limit (--set ...)."


def _limit_reached(state: CheckpointState, settings: TrainSettings, metric: str | None) -> str:
    if settings.steps and state.step >= settings.steps:
        return f"train.steps={settings.steps} is reached"
    if settings.epochs and _epochs(state.position) >= settings.epochs:
        return f"train.epochs={settings.epochs} is reached"
    seconds = trained_seconds(state)
    if settings.minutes and seconds is not None and seconds >= 60 * settings.minutes:
        return f"train.minutes={settings.minutes:g} is reached"
    if metric is not None and settings.stop_patience:
        from towernmt.callbacks.stopping import EarlyStopping  # imports TensorFlow

        if EarlyStopping.saved_failures(state.callbacks, metric) >= settings.stop_patience:
            return f"train.stop_patience={settings.stop_patience} validations without a better score are reached"
    return ""


def _epochs(position: str | None) -> int:
    """Return the number of complete passes over the data."""
    try:
        return Position.from_json(position).epoch if position is not None else 0
    except DataError:       # the position of a custom input
        return 0


def _lacks_validation(state: CheckpointState) -> bool:
    """Return whether the run ended before the validation of its last step, which the next start does."""
    from towernmt.callbacks.bleu_validator import BleuValidator  # imports TensorFlow

    last = BleuValidator.saved_last_step(state.callbacks)
    return last is not None and last < state.step


def trained_seconds(state: CheckpointState) -> float | None:
    """Return the seconds that a run has trained, validations and saving included; None if they are not known.

    A run without `train.minutes` has no state of that limit, but its progress counts the same time.
    """
    from towernmt.callbacks.progress import Progress  # imports TensorFlow
    from towernmt.callbacks.stopping import StopAfterMinutes

    seconds = StopAfterMinutes.saved_seconds(state.callbacks)
    return Progress.saved_seconds(state.callbacks) if seconds is None else seconds
