"""Options of a run that commands and example programs share: model, settings, devices; and the help on settings."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from towernmt.cluster.cluster_description import cluster_from_environment
from towernmt.core.errors import SettingsError, suggestion
from towernmt.core.gpus import missing_without_tensorflow
from towernmt.core.setting_values import assigned
from towernmt.core.settings import describe, parse_assignments
from towernmt.models.architectures import ARCHITECTURES, settings_and_presets
from towernmt.run.run_settings import VOCABULARY_SIZES

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.run.directory import RunDirectory
    from towernmt.run.resolve import DefaultsMode, SettingsSources
    from towernmt.run.rules.automatic_value import AutomaticSetting
    from towernmt.run.started_run import StartingModel


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the model, the devices and the settings, which the example programs share."""
    parser.add_argument("--logdir", help="directory of the run; a run that it contains is resumed")
    parser.add_argument("--model", default=None, help=f"architecture: {', '.join(ARCHITECTURES)}; or a custom one, as "
                                                      "my_model.py:MyModel or package.module:MyModel")
    parser.add_argument("--preset", default=None, help="named sizes of the model, for example tiny")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--gpu", metavar="N,N", help="GPU numbers, one tower each, for example 0,1,2,3")
    devices.add_argument("--towers", type=int, metavar="N", help="N towers on the CPU")
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings, for example data.batch_tokens=4096; any number, may be repeated")
    parser.add_argument("--verbose", action="store_true",
                        help="print the complete log, with the table of variables and each step of the setup")
    parser.add_argument("--help-settings", nargs="?", const="", metavar="PART",
                        help="print the settings (those with PART in their names) and the values of presets, and exit")


def defaults_mode(requested: str | None, several_workers: bool) -> DefaultsMode:
    """Return the mode of the defaults for the value of `--defaults`.

    Args:
        requested: value of `--defaults`; None for the default.
        several_workers: whether several processes train.

    Raises:
        SettingsError: automatic settings are requested for several workers, which must all have the same settings.
    """
    if several_workers and requested == "automatic":
        raise SettingsError("--defaults automatic depends on one machine, but several workers may run on different "
                            "machines: leave it out.")
    if requested == "fixed":
        return "fixed"
    return "shared" if several_workers else "automatic"


def note_of_fixed_defaults(automatic: Sequence[AutomaticSetting]) -> str:
    """Return a sentence, for the log, on the fixed defaults that a new run of several workers has without a request.

    Args:
        automatic: the automatic settings, which several workers can share.
    """
    keys = [setting.key for setting in automatic]
    exception = f", except {' and '.join(keys)}," if keys else ""
    others = "the model" if "data.batch_tokens" in keys else "the batch size"
    return (f"Several workers use the fixed defaults of --help-settings{exception} because automatic settings depend "
            f"on one machine: set the precision, the schedule and {others} with --set.")


def workers_of_cluster() -> int | None:
    """Return the number of processes that train together according to the environment; None if there is only one."""
    cluster = cluster_from_environment(os.environ)
    return None if cluster is None else len(cluster.workers)


def settings_sources(options: argparse.Namespace, open_data: Callable[[], TrainingData] | None = None,
                     defaults: DefaultsMode = "fixed", workers: int | None = None,
                     start: StartingModel | None = None) -> SettingsSources:
    """Return the sources of the settings that the command line names; `--config` is read here.

    Args:
        options: parsed arguments of `add_run_arguments`.
        open_data: opens the training data, on which automatic settings depend; None for no automatic settings.
        defaults: mode of the defaults of a new run.
        workers: number of processes that train together; None for a training in one process.
        start: the model of `--start`.

    Raises:
        SettingsError: the configuration file, an assignment or a GPU number is invalid.
    """
    from towernmt.run.ineffective_settings import COMMAND_LINE
    from towernmt.run.resolve import Overrides, SettingsSources, read_config

    assigned_values = Overrides(COMMAND_LINE, parse_assignments(options.assignments))
    return SettingsSources(
        options.model, options.preset, existing_run(options.logdir), start=start,
        overrides=(read_config(options.config), assigned_values) if options.config else (assigned_values,),
        defaults=defaults, open_data=open_data, gpus=gpu_numbers(options.gpu), towers=options.towers,
        workers=workers)


def existing_run(logdir: str | None) -> RunDirectory | None:
    """Return the run in a directory; None without a directory or if it contains no run."""
    if not logdir:
        return None
    from towernmt.run.directory import RunDirectory

    run = RunDirectory(logdir)
    return run if run.exists() else None


def starting_model(options: argparse.Namespace) -> StartingModel | None:
    """Return the model of `--start`; None without the option.

    Raises:
        TowerNMTError: the path is not a trained model, or the model is damaged.
    """
    if options.start is None:
        return None
    from towernmt.interop.starting_models import open_starting_model  # imports TensorFlow

    return open_starting_model(options.start, "--start", options.trust_code)


def gpu_numbers(text: str | None) -> list[int] | None:
    """Return `"0,1"` as `[0, 1]`, and None as None.

    Raises:
        SettingsError: not a comma-separated list of numbers.
    """
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise SettingsError(f"--gpu {text}: expected GPU numbers separated by commas, for example 0,1.") from None


def check_devices(options: argparse.Namespace) -> None:
    """Refuse GPUs that are missing, before data are read. With `--workers`, they are those of other machines.

    Args:
        options: parsed arguments of `add_run_arguments`.

    Raises:
        SettingsError: a GPU is missing, with the reason.
    """
    gpus = gpu_numbers(options.gpu)
    if gpus is None or getattr(options, "workers", None) is not None:
        return
    if missing := missing_without_tensorflow(gpus):
        raise SettingsError(f"--gpu {options.gpu}: {missing}; use --towers {len(gpus)} to run the same towers on the "
                            "CPU.")
    from towernmt.train.training_towers import tower_devices  # imports TensorFlow

    tower_devices(gpus, None)


def print_settings(options: argparse.Namespace) -> int:
    """Print the settings that `--help-settings` requests, with their meanings, and their values in the presets."""
    from towernmt.run.resolve import resolve_settings

    print(settings_text(resolve_settings(settings_sources(options)).settings, options.help_settings), end="")
    return 0


def settings_text(settings: Any, substring: str = "") -> str:
    """Return the settings whose names contain `substring`, with their values and meanings, and their values in presets.

    Args:
        settings: settings of a run.
        substring: substring of the names, such as `schedule`, `dropout` or `train.batch`; "" for all settings.

    Raises:
        SettingsError: no setting has this substring in its name.
    """
    rows = [row for row in describe(settings) if row[0] not in VOCABULARY_SIZES]
    matches = [row for row in rows if substring.lower() in row[0].lower()]
    if not matches:
        words = (word for key, *_ in rows for word in (key, *key.split(".")))
        raise SettingsError(f"--help-settings {substring}: no setting has that in its name."
                            f"{suggestion(substring, words)}")
    text = "".join(f"{key}={assigned(value)}\n    {meaning}\n" for key, value, meaning in matches)
    return text + _presets_text(settings.architecture, {key for key, *_ in matches})


def _presets_text(architecture: str, keys: set[str]) -> str:
    """Return the values of these keys in the presets of an architecture; "" if no preset sets one."""
    lines = []
    for name, values in settings_and_presets(architecture)[1].items():
        assignments = [shlex.quote(f"{key}={assigned(value)}") for key, value in values.items()
                       if f"model.{key}" in keys]
        if assignments or not values:
            lines.append(f"  --preset {name}: {' '.join(assignments) or 'the defaults'}\n")
    return f"Presets of {architecture} (in the group model):\n{''.join(lines)}" if "=" in "".join(lines) else ""


def next_command(logdir: str) -> str:
    """Return the command that translates with a finished run, as a line for a shell."""
    return ("Translate one sentence per line with the model:\n"
            f"  towernmt translate --model {shlex.quote(logdir)} --input FILE")


def option_name(name: str) -> str:
    """Return the option that argparse stores as this attribute, such as `--min-workers` for `min_workers`."""
    return f"--{name.replace('_', '-')}"
