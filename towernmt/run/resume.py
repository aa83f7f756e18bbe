"""Resuming a run: whether it may go on with these settings and data, and whether anything is left to do."""

from __future__ import annotations

from typing import Any

from towernmt.checkpoint.files import latest_checkpoint
from towernmt.checkpoint.state import CheckpointState, read_state
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import flatten
from towernmt.dataflow.order.position import Position
from towernmt.dataflow.order.training_data import TrainingData
from towernmt.run.directory import RunDirectory, differing_vocabulary
from towernmt.run.settings import Settings, TrainSettings

FIXED_GROUPS = ("model.",)
_FREE_PARTS = ("dropout", "smoothing", "r_drop", "guided_alignment")
FIXED_KEYS = ("optimizer.name", "optimizer.ema_decay", "optimizer.adafactor_momentum", "train.only", "train.freeze")


def check_resumable(run: RunDirectory, settings: Settings) -> None:
    """Refuse to go on with a run under another architecture, which its checkpoints would not fit.

    Raises:
        SettingsError: the first setting that differs.
    """
    if not run.exists() or not run.checkpoints.is_dir():
        return
    run.check_model(settings.architecture)
    old, new = flatten(run.settings_like(settings)), flatten(settings)
    for key in old:
        fixed = key.startswith(FIXED_GROUPS) or key in FIXED_KEYS
        if fixed and not is_free(key) and old[key] != new.get(key):
            raise SettingsError(f"{run.path} holds a run with {key}={old[key]}, not {new.get(key)}: leave that setting "
                                "as it was to go on with it, or pass another --logdir to begin another.")


def is_free(key: str) -> bool:
    """Whether a setting of the model says how it is trained, and no variable depends on it, as on dropout."""
    return any(part in key for part in _FREE_PARTS)


def check_vocabularies(run: RunDirectory, data: TrainingData) -> None:
    """Refuse to go on with a run on data of another vocabulary: its ids would be other words.

    Raises:
        SettingsError: the vocabularies differ.
    """
    if not run.exists() or not run.checkpoints.is_dir():
        return
    other = differing_vocabulary(run.vocabulary, data)
    if other:
        raise SettingsError(f"{run.path} was trained with another vocabulary than that of {data.directory} ({other} "
                            "differs): pass the --data of the run, prepare the new data with the run's vocabulary "
                            "files, or pass another --logdir to begin another.")


def check_data(run: RunDirectory, data: TrainingData) -> None:
    """Refuse to go on with a run on other data than those that it was trained on.

    Its position in them would be a place in another text. Of runs and data that do not tell, nothing is said.

    Raises:
        SettingsError: the data are others.
    """
    latest, now = latest_checkpoint(run.checkpoints), getattr(data, "fingerprint", None)
    told = read_state(latest).made_from.get("data") if latest is not None and run.exists() else None
    if told is not None and now is not None and told != now:
        raise SettingsError(f"{run.path} was trained on other data than {data.directory} now holds (their fingerprints "
                            "differ): pass the --data that it was trained on, or train on these in another --logdir "
                            f"that begins with its parameters (--set init.checkpoint={run.path}).")


def finished(run: RunDirectory, settings: TrainSettings) -> str:
    """Why there is nothing left to do, as a sentence; "" where there is something.

    Raises:
        CheckpointError: the last checkpoint's `state.json` is damaged.
    """
    latest = latest_checkpoint(run.checkpoints)
    if latest is None or not run.exists():
        return ""
    state = read_state(latest)
    limit = _limit_reached(state, settings)
    if not limit or _owes_validation(state):
        return ""
    return f"{run.path} is finished: {limit} at step {state.step}. To go on, give a higher limit (--set ...)."


def _limit_reached(state: CheckpointState, settings: TrainSettings) -> str:
    if settings.steps and state.step >= settings.steps:
        return f"train.steps={settings.steps} is reached"
    if settings.epochs and _epochs(state.position) >= settings.epochs:
        return f"train.epochs={settings.epochs} is reached"
    seconds = _remembered(state, "stop_after_minutes", "elapsed_seconds")
    if settings.minutes and seconds is not None and seconds >= 60 * settings.minutes:
        return f"train.minutes={settings.minutes:g} is reached"
    failures = _remembered(state, "early_stopping", "failures")
    if settings.stop_patience and failures is not None and failures >= settings.stop_patience:
        return f"train.stop_patience={settings.stop_patience} validations without a better score are reached"
    return ""


def _epochs(position: str | None) -> int:
    """Passes over the data that are complete."""
    try:
        return Position.from_json(position).epoch if position is not None else 0
    except DataError:       # of an input of one's own
        return 0


def _owes_validation(state: CheckpointState) -> bool:
    """Whether the run was ended before the validation of its last step: the next start makes it."""
    last = _remembered(state, "bleu_validator", "last_step")
    return last is not None and last < state.step


def _remembered(state: CheckpointState, key: str, name: str) -> Any:
    """A number that a callback remembers; None where it is not told."""
    memory = state.callbacks.get(key)
    value = memory.get(name) if isinstance(memory, dict) else None
    return value if isinstance(value, (int, float)) else None
