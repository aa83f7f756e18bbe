"""A run that starts from a trained model: settings that come from the model, and settings that the model excludes.

The architecture, the sizes and the search settings are those of the model. Settings that affect only training, such as
dropout, have the values of a new run. The vocabulary of the data must be that of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.checkpoint.records import recorded_initial_weights
from towernmt.core.errors import SettingsError
from towernmt.core.setting_values import assigned
from towernmt.core.settings import apply_overrides, flatten
from towernmt.models.model_location import find_location, is_findable
from towernmt.models.model_settings import with_guided_heads
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.run.ineffective_settings import COMMAND_LINE
from towernmt.run.run_settings import (
    ALIGNING_HEADS,
    VOCABULARY_SIZES,
    InitSettings,
    Settings,
    affects_training_only,
    default_settings,
)

if TYPE_CHECKING:
    from towernmt.checkpoint.saved_run import SavedRun
    from towernmt.dataflow.batches.training_data import TrainingData


class StartingModel(NamedTuple):
    """A trained model from which a new run starts.

    Attributes:
        name: the path that the user passed, for messages.
        location: value of `init.checkpoint`: the path itself, or the directory of the imported run.
        run: the run of the model.
        notes: differences of an imported model from the original one, one sentence each.
        checkpoint: the directory of the checkpoint if `name` is one; None for the checkpoint that the run chooses.
        option: the option that names the model, for messages.
    """

    name: str
    location: str
    run: SavedRun
    notes: tuple[str, ...] = ()
    checkpoint: str | None = None
    option: str = "--start"

    def weights_checksum(self) -> str:
        """Return the checksum of the weights of the model; see `checksum_of_weights`."""
        from towernmt.checkpoint.checkpoint_files import checksum_of_weights  # imports NumPy

        return checksum_of_weights(self.run.checkpoint(self.checkpoint))


_CHANGEABLE = ("model.lhuc", "model.kernels", *ALIGNING_HEADS)
"""Model settings that fit the parameters of any starting model. Settings of training, such as dropout, fit, too."""
_EMBEDDINGS = ("init.embeddings", "init.source_embeddings", "init.target_embeddings")
_INITIAL_VALUES = ("init.checkpoint", *_EMBEDDINGS)


def starting_settings(start: StartingModel, architecture: str | None = None, preset: str | None = None) -> Settings:
    """Return the settings of a new run before a user's overrides.

    Args:
        start: the starting model.
        architecture: the value of `--model`; None for the architecture of the model.
        preset: the value of `--preset`, which must be None.

    Raises:
        SettingsError: the architecture is not that of the model, or a preset is specified.
    """
    if preset is not None:
        raise SettingsError(f"--preset {preset}: the sizes are those of the model of --start {start.name}: leave out "
                            "--preset.")
    recorded = start.run.architecture()
    if architecture is not None and _name_of(architecture) != recorded:
        raise SettingsError(f"--model {architecture}: the model of --start {start.name} is {recorded}: leave out "
                            "--model.")
    settings = default_settings(architecture or start.run.architecture_to_load())
    if settings.model is not None:
        saved = with_guided_heads(start.run.group("model", settings.model))
        names = [field.name for field in dataclasses.fields(saved)
                 if affects_training_only(field.name) and f"model.{field.name}" not in _CHANGEABLE]
        settings.model = dataclasses.replace(saved, **{name: getattr(settings.model, name) for name in names})
    settings.search = start.run.group("search", SearchSettings())
    if settings.search.shortlist and Path(start.location).is_file():
        # The package is a shortlist, too. Its copy in the cache may be removed, and later commands may begin in other
        # directories.
        package = str(Path(start.location).absolute())
        settings.search = dataclasses.replace(settings.search, shortlist=package)
    settings.init = dataclasses.replace(settings.init, checkpoint=start.location)
    return settings


def without_initial_values(start: StartingModel, origin: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the values of a file without the initial values of a run, which the starting model replaces, and a note.

    The recorded settings of an earlier run always contain initial values. Those of the command line are returned, too.

    Args:
        start: the starting model.
        origin: source of the values, for messages: `--set`, or the path of a file.
        values: dotted key to value.

    Returns:
        The other values, and a sentence on the initial values that are neither the usual ones nor those of the starting
        model; "" if there are none.
    """
    if origin == COMMAND_LINE:
        return dict(values), ""
    usual = flatten(InitSettings(), "init.")
    replaced = [f"{key}={assigned(values[key])}" for key in _INITIAL_VALUES
                if values.get(key) not in (None, usual[key], start.location)]
    note = (f"{origin}: {' and '.join(replaced)} {'has' if len(replaced) == 1 else 'have'} no effect, because the run "
            f"starts from {start.option} {start.name}.") if replaced else ""
    return {key: value for key, value in values.items() if key not in _INITIAL_VALUES}, note


def check_overrides_of_start(start: StartingModel, settings: Settings, origin: str, values: Mapping[str, Any]) -> None:
    """Refuse values that contradict the starting model.

    Args:
        start: the starting model.
        settings: the result of `starting_settings`.
        origin: source of the values, for messages: `--set`, or the path of a file.
        values: dotted key to value.

    Raises:
        SettingsError: names the first setting or option.
    """
    name, is_file = values.get("architecture"), origin != COMMAND_LINE
    if is_file and name not in (None, settings.architecture, start.run.architecture()):
        raise SettingsError(f"{origin} has the settings of the model {name}, but the model of {start.option} "
                            f"{start.name} is {start.run.architecture()}: remove `architecture` and the group `model` "
                            "from a copy of the file, to use its other settings.")
    advice = ("remove the group `model` from a copy of the file, to use its other settings" if is_file else
              "leave it out")
    old_values = flatten(settings)
    known = {key: value for key, value in values.items() if key in old_values}
    new_values = flatten(apply_overrides(settings, known, origin))
    for key in values:
        if old_values.get(key) == new_values.get(key):
            continue
        if key == "init.checkpoint":
            raise SettingsError(f"{origin}: init.checkpoint={new_values[key]}, but {start.option} {start.name} already "
                                "names the model that the run starts from: leave out one of them.")
        if key in _EMBEDDINGS:
            raise SettingsError(f"{origin}: {key}={new_values[key]} would replace the embeddings of "
                                f"{start.option} {start.name}: leave it out.")
        if key.startswith("model.") and key not in (*_CHANGEABLE, *VOCABULARY_SIZES) and not affects_training_only(key):
            raise SettingsError(f"{origin}: {key}={new_values[key]}, but the parameters of {start.option} "
                                f"{start.name} need {key}={old_values[key]}: {advice}.")


def check_resumed_start(start: StartingModel, run: SavedRun) -> None:
    """Refuse to resume a run with another starting model than the one that it began with.

    The checksum of the weights decides, because a path can lead to another model from another directory or later.

    Args:
        start: the starting model.
        run: the run to resume.

    Raises:
        SettingsError: the run began with another model, or without one.
    """
    logdir = run.path
    if logdir.resolve() == start.run.path.resolve():
        raise SettingsError(f"--logdir {logdir} is the run of --start: pass another --logdir for the new run.")
    saved = run.saved_settings()
    recorded = recorded_initial_weights(saved)
    if not recorded or recorded != start.weights_checksum():
        location = saved.get("init.checkpoint")
        initial = f"other parameters (init.checkpoint={location})" if location else "random parameters"
        raise SettingsError(f"--start {start.name}: {logdir} holds a run that began with {initial}: leave out --start "
                            "to resume it, or pass another --logdir for a new run.")


def check_data_of_start(start: StartingModel, data: TrainingData) -> None:
    """Refuse data with another vocabulary than that of the starting model.

    Raises:
        SettingsError: a vocabulary differs.
    """
    from towernmt.run.directory import differing_vocabulary

    differing_file = differing_vocabulary(start.run.vocabulary, data)
    if differing_file:
        raise SettingsError(f"{data.directory} has another vocabulary than the model of --start {start.name} "
                            f"({differing_file} differs): prepare the text with `towernmt prepare --vocabulary-of "
                            f"{start.name}`, or pass it unprepared, without a vocabulary.")


def _name_of(architecture: str) -> str:
    return find_location(architecture).name if is_findable(architecture) else architecture
