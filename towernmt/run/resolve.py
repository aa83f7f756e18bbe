"""Resolve the settings of a run from all of their sources; command line, examples and tuning call `resolve_settings`.

From low to high priority: the defaults of the model or of a preset, the settings of the run to resume, and overrides
(a configuration file, then `--set`). In a new run, automatic values replace the defaults that nobody has specified.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from towernmt.callbacks.schedules import noam
from towernmt.checkpoint.records import recorded_initial_weights, without_provenance
from towernmt.core.errors import SettingsError
from towernmt.core.setting_values import assigned
from towernmt.core.settings import apply_overrides, flatten, load_yaml
from towernmt.models.architectures import settings_and_presets
from towernmt.run.automatic_options import PROPOSED_PRESETS, automatic_towers, proposed_preset
from towernmt.run.automatic_settings import AUTOMATIC_SETTINGS_FILE, apply_automatic_settings
from towernmt.run.changed_limit import note_of_changed_limit
from towernmt.run.ineffective_settings import COMMAND_LINE, notes_of_ineffective_settings
from towernmt.run.product_rates import product_rates
from towernmt.run.rules.automatic_value import AutomaticSetting, Rule, is_transformer
from towernmt.run.rules.batch_rules import batch
from towernmt.run.rules.model_rules import initial_model
from towernmt.run.rules.update_rules import learning_rate
from towernmt.run.run_settings import VOCABULARY_SIZES, Settings, affects_training_only, default_settings
from towernmt.run.started_run import (
    StartingModel,
    check_data_of_start,
    check_overrides_of_start,
    check_resumed_start,
    starting_settings,
    without_initial_values,
)
from towernmt.run.training_conditions import (
    TrainingConditions,
    has_general_data,
    needs_product_rates,
    training_conditions,
)

if TYPE_CHECKING:       # `towernmt train --help-settings` needs no NumPy
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.run.directory import RunDirectory

DefaultsMode: TypeAlias = Literal["automatic", "shared", "fixed"]
"""Which settings of a new run get automatic values: all, those that several workers can share, or none."""


class Overrides(NamedTuple):
    """Values that a user specifies.

    Attributes:
        origin: their source, for error messages: `--set`, or the path of a file.
        values: dotted key to value.
    """

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class SettingsSources:
    """All sources of the settings of a run.

    Attributes:
        model: an architecture or a custom model; None for that of the run, or the Transformer.
        preset: a preset of the model; None for its defaults.
        run: an existing run, whose settings are resumed; None for a new one.
        base: settings that replace the defaults of the model, for example those of another run; ignored with `run`.
        start: the trained model from which a new run starts, instead of `base`; a resumed run must have begun with it.
        overrides: specified values; later ones replace earlier ones.
        defaults: which settings of a new run get automatic values.
        open_data: opens the training data, on which automatic values depend; called when the specified settings are
            found valid. None for no automatic values.
        gpus: numbers of the GPUs; None for the CPU.
        towers: number of towers on the CPU; None if not specified.
        workers: number of processes that train together; None for a training in one process.
    """

    model: str | None = None
    preset: str | None = None
    run: RunDirectory | None = None
    base: Settings | None = None
    start: StartingModel | None = None
    overrides: tuple[Overrides, ...] = ()
    defaults: DefaultsMode = "fixed"
    open_data: Callable[[], TrainingData] | None = None
    gpus: Sequence[int] | None = None
    towers: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class ResolvedSettings:
    """The settings of a run.

    Attributes:
        settings: all settings.
        automatic: the automatic settings with their reasons; None if the run has the fixed or the saved ones.
        towers: number of towers on the CPU; None for the default.
        notes: sentences for the log.
        conditions: the training conditions on which the automatic settings depend; None without automatic settings.
    """

    settings: Settings
    automatic: list[AutomaticSetting] | None = None
    towers: int | None = None
    notes: list[str] = field(default_factory=list)
    conditions: TrainingConditions | None = None


def resolve_settings(sources: SettingsSources) -> ResolvedSettings:
    """Return the settings of a run, with the reasons of the automatic ones.

    Raises:
        SettingsError: an unknown model, preset or setting, an invalid value, or (if the data are known) a value of
            `--set` without effect.
    """
    notes: list[str] = []
    if (start := sources.start) is not None:
        kept = [without_initial_values(start, *each) for each in sources.overrides]
        sources = dataclasses.replace(sources, overrides=tuple(
            Overrides(each.origin, values) for each, (values, _) in zip(sources.overrides, kept, strict=True)))
        notes = [note for _, note in kept if note]
    settings = _specified_settings(sources)
    data = sources.open_data() if sources.open_data is not None else None
    if data is not None and sources.start is not None:
        check_data_of_start(sources.start, data)
    resolved = _with_saved_or_automatic_settings(sources, data, settings)
    if data is not None:
        notes += notes_of_ineffective_settings(resolved.settings, sources.overrides, data)
    return dataclasses.replace(resolved, notes=[*resolved.notes, *notes])


def _with_saved_or_automatic_settings(sources: SettingsSources, data: TrainingData | None, settings: Settings
                                      ) -> ResolvedSettings:
    """Return the specified settings, with the automatic ones of a new run or the towers of a resumed one."""
    if data is not None and sources.defaults != "fixed" and _is_new(sources.run):
        add_values = _with_shared_settings if sources.defaults == "shared" else _with_automatic_settings
        return add_values(sources, data, settings)
    if sources.run is None:
        return ResolvedSettings(settings, towers=sources.towers, notes=_notes_of_start(sources))
    if sources.workers is not None:
        return ResolvedSettings(settings, towers=sources.towers)
    recorded = recorded_automatic_settings(sources.run)
    towers = sources.towers
    if sources.gpus is None and towers is None:
        towers = _recorded_towers(sources.run, recorded)
    note = note_of_changed_limit(recorded, sources.run.settings_like(settings), settings, has_general_data(data))
    return ResolvedSettings(settings, towers=towers, notes=[note] if note else [])


def read_config(path: str | Path) -> Overrides:
    """Return the values of a configuration file, which may be the `settings.yaml` of a run.

    Raises:
        SettingsError: the file is missing or invalid.
    """
    content = without_provenance(load_yaml(Path(path)))
    return Overrides(str(path), {key: value for key, value in content.items() if key not in VOCABULARY_SIZES})


def _specified_settings(sources: SettingsSources) -> Settings:
    """Return the settings without automatic values."""
    if sources.run is not None:
        settings = sources.run.settings(sources.model)
        if sources.start is not None:
            check_resumed_start(sources.start, sources.run)
            settings.init = dataclasses.replace(settings.init, checkpoint=sources.start.location)
        if sources.preset is not None:
            settings.model = _resumed_preset(settings, sources.preset, recorded_automatic_settings(sources.run))
    elif sources.start is not None:
        settings = starting_settings(sources.start, sources.model, sources.preset)
        for origin, values in sources.overrides:
            check_overrides_of_start(sources.start, settings, origin, values)
    else:
        settings = sources.base or default_settings(sources.model or "transformer", sources.preset)
    saved = settings
    for origin, all_values in sources.overrides:
        values = _without_name_of_model(origin, all_values, sources, settings)
        for key in values:
            if key in VOCABULARY_SIZES:
                raise SettingsError(f"{origin}: {key} cannot be set, because it is the size of the vocabulary of "
                                    "--data: leave it out, or prepare the data with another vocabulary (towernmt "
                                    "prepare --vocab-size).")
        settings = _with_home_directory(apply_overrides(settings, values, origin), values)
    if sources.run is not None and not _is_new(sources.run):
        _check_initial_values(saved, settings, sources.run)
        if not any("optimizer.learning_rate" in values for _, values in sources.overrides):
            _check_unit_of_rate(saved, settings)
    return settings


_PATHS = ("init.checkpoint", "init.source_embeddings", "init.target_embeddings", "search.shortlist")
"""The settings whose values are paths."""


def _with_home_directory(settings: Settings, specified: Collection[str]) -> Settings:
    """Return the settings with the home directory instead of `~`, which a shell does not replace after `key=`.

    Args:
        settings: the settings.
        specified: dotted keys of the values that a user specifies.
    """
    values = flatten(settings)
    return apply_overrides(settings, {key: os.path.expanduser(values[key]) for key in _PATHS if key in specified})


def _without_name_of_model(origin: str, values: Mapping[str, Any], sources: SettingsSources, settings: Settings
                           ) -> dict[str, Any]:
    """Return values without the name of the model, which the `settings.yaml` of a run has.

    With `--model`, these settings are used for another model.

    Raises:
        SettingsError: the name is of another model, and `--model` is not specified.
    """
    runs = [sources.run, None if sources.start is None else sources.start.run]
    names = {settings.architecture, *(run.architecture() for run in runs if run is not None)}
    name = values.get("architecture", settings.architecture)
    if sources.model is None and name not in names:
        raise SettingsError(f"{origin}: architecture={name} is the name of another model than {settings.architecture}: "
                            "pass it as --model instead." if origin == COMMAND_LINE else
                            f"{origin} has the settings of the model {name}: pass --model {name}, or --model with the "
                            "model that shall have these settings.")
    return {key: value for key, value in values.items() if key != "architecture"}


def _check_initial_values(saved: Settings, settings: Settings, run: RunDirectory) -> None:
    """Refuse other initial values than those with which a run began, because a resumed run has no use for them.

    As for `--start`, `init.checkpoint` may lead to the same weights by another path.

    Raises:
        SettingsError: names the first setting that differs.
    """
    old, new = flatten(saved.init, "init."), flatten(settings.init, "init.")
    for key, value in new.items():
        if value != old[key] and not (key == "init.checkpoint" and value and _began_with(run, value)):
            raise SettingsError(f"{key}={assigned(value)} is for new runs, but {run.path} holds a run that began with "
                                f"{key}={assigned(old[key])}: leave it out to resume the run, or pass another --logdir "
                                "for a new run.")


def _began_with(run: RunDirectory, checkpoint: str) -> bool:
    """Return whether a run began with the weights of a value of `init.checkpoint`."""
    from towernmt.checkpoint.checkpoint_files import checksum_of_weights
    from towernmt.checkpoint.restore import initial_checkpoint  # imports TensorFlow

    _initial_run, prefix = initial_checkpoint(checkpoint)       # a package may remove its files with it
    return recorded_initial_weights(run.saved_settings()) == checksum_of_weights(prefix)


def _check_unit_of_rate(saved: Settings, settings: Settings) -> None:
    """Refuse to resume with or without the schedule noam, if the run began otherwise and no new rate is specified.

    `optimizer.learning_rate` is a factor for noam, and a peak for the other schedules. A peak of 0.003 as a factor
    would train at almost no rate, and a factor of 2 as a peak would ruin the model.

    Raises:
        SettingsError: the unit of the learning rate changes.
    """
    old, new = saved.schedule.name, settings.schedule.name
    if (old == noam.__name__) != (new == noam.__name__):
        unit = "a factor, usually 1 or 2" if new == noam.__name__ else "the highest learning rate"
        raise SettingsError(f"schedule.name changed from {old} to {new}, for which optimizer.learning_rate is {unit}, "
                            f"but the run has {saved.optimizer.learning_rate:g}: pass --set "
                            "optimizer.learning_rate=... too.")


def _resumed_preset(saved: Settings, preset: str, automatic: Collection[str]) -> Any:
    """Return the model settings of a resumed run for which a preset is specified.

    Settings that the preset does not set keep the saved values if they are automatic, if only training depends on them,
    or if the run took its sizes from another run. All others are those of the preset, so that a run of another preset
    is refused.

    Args:
        saved: settings of the run.
        preset: the preset.
        automatic: keys of the automatic settings of the run.
    """
    model = default_settings(saved.architecture, preset).model
    names = settings_and_presets(saved.architecture)[1][preset]
    kept = {f.name: getattr(saved.model, f.name) for f in dataclasses.fields(saved.model) if f.name not in names and (
        f"model.{f.name}" in {*VOCABULARY_SIZES, *automatic} or saved.init.checkpoint or affects_training_only(f.name))}
    return dataclasses.replace(model, **kept)


def _is_new(run: RunDirectory | None) -> bool:
    """Return whether a run has neither a checkpoint nor recorded automatic settings."""
    from towernmt.checkpoint.checkpoint_files import latest_checkpoint

    return run is None or (latest_checkpoint(run.checkpoints) is None
                           and not (run.path / AUTOMATIC_SETTINGS_FILE).is_file())


def _with_automatic_settings(sources: SettingsSources, data: TrainingData, settings: Settings) -> ResolvedSettings:
    specified = _specified_keys(sources, settings)
    needs_rates = needs_product_rates(settings, specified, sources.gpus)
    conditions = training_conditions(data, sources.gpus, product_rates(sources.gpus) if needs_rates else None)
    automatic = []
    preset = _proposed_preset(sources, data, settings, specified, conditions)
    if preset is not None:
        sources = dataclasses.replace(sources, preset=preset.value)
        settings = _specified_settings(sources)
        specified = _specified_keys(sources, settings)
        automatic.append(preset)
    settings, values = apply_automatic_settings(settings, conditions, specified)
    automatic += values
    towers = sources.towers
    if sources.gpus is None and towers is None:
        automatic.append(automatic_towers(settings, conditions))
        towers = automatic[-1].value
    return ResolvedSettings(settings, automatic, towers, _notes_of_start(sources), conditions)


def _notes_of_start(sources: SettingsSources) -> list[str]:
    return [] if sources.start is None else [*sources.start.notes]


def _with_shared_settings(sources: SettingsSources, data: TrainingData, settings: Settings) -> ResolvedSettings:
    """Return the settings with the automatic values that several workers can share.

    All workers must have the same values. The batch size is that of the GPUs of all workers. The optimizer and the
    learning rate of a model that is trained already depend only on the model, the data and the other settings.
    """
    rules: list[Rule] = [batch] if sources.gpus else []
    if settings.init.checkpoint:
        rules = [initial_model, *rules, learning_rate]
    if not rules:
        return ResolvedSettings(settings, towers=sources.towers, notes=_notes_of_start(sources))
    conditions = training_conditions(data, sources.gpus, None, sources.workers or 1)
    settings, automatic = apply_automatic_settings(settings, conditions, _specified_keys(sources, settings), rules)
    return ResolvedSettings(settings, automatic, sources.towers, _notes_of_start(sources), conditions)


def _specified_keys(sources: SettingsSources, settings: Settings) -> set[str]:
    """Return the dotted keys that the preset and the overrides set."""
    preset = settings_and_presets(settings.architecture)[1].get(sources.preset or "", ())
    return {f"model.{name}" for name in preset}.union(*(values for _, values in sources.overrides))


def _proposed_preset(sources: SettingsSources, data: TrainingData, settings: Settings, specified: set[str],
                     conditions: TrainingConditions) -> AutomaticSetting | None:
    """Return the preset for prepared data; None if the user specifies a preset or a size, or another architecture.

    A custom class that is derived from `Transformer` gets one if it has all presets that can be proposed.
    """
    from towernmt.dataflow.batches.mixed_data import MixedData
    from towernmt.dataflow.preparation.prepared_data import PreparedData

    presets = settings_and_presets(settings.architecture)[1]
    if sources.preset or settings.init.checkpoint or not (
            is_transformer(settings) and presets.keys() >= {*PROPOSED_PRESETS}):
        return None
    if not isinstance(data, (PreparedData, MixedData)):
        return None
    if specified & {f"model.{name}" for preset in PROPOSED_PRESETS for name in presets[preset]}:
        return None
    tokens = conditions.tokens(apply_automatic_settings(settings, conditions, specified)[0])
    return proposed_preset(data.pairs, conditions.gpus, tokens)


def recorded_automatic_settings(run: RunDirectory) -> dict[str, Any]:
    """Return the automatic settings that a run recorded at its start, by key of a setting or option.

    `--towers` is an option and no setting, so it is only stored here. A resumed run needs the same number of towers to
    draw the same dropout masks as an uninterrupted run.
    """
    path = run.path / AUTOMATIC_SETTINGS_FILE
    content = load_yaml(path) if path.is_file() else {}
    return {key.removesuffix(".value"): value for key, value in content.items() if key.endswith(".value")}


def _recorded_towers(run: RunDirectory, recorded: Mapping[str, Any]) -> int | None:
    """Return the recorded number of towers, or None if the run did not record it.

    Raises:
        SettingsError: it is not a number of towers, because the record was edited.
    """
    towers = recorded.get("--towers")
    if towers is not None and (type(towers) is not int or towers < 1):
        raise SettingsError(f"{run.path / AUTOMATIC_SETTINGS_FILE}: --towers has the value {towers!r}, but must be a "
                            "whole number from 1: correct it, or pass --towers N.")
    return towers
