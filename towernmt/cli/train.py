"""`towernmt train`: train a model on prepared data or directly from sources, or resume a run.

With `--workers`, several workers train on Ray. `--help-settings` prints every setting, or those of a group or with a
part of a name, and the values of presets.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.cluster.cluster_description import cluster_from_environment
from towernmt.core.directories import MONOLINGUAL_RECORD
from towernmt.core.errors import SettingsError, mask_uri, suggestion
from towernmt.core.gpus import missing_without_tensorflow, visible_gpus
from towernmt.core.settings import assigned, describe, parse_assignments
from towernmt.models.architectures import ARCHITECTURES, settings_and_presets
from towernmt.run.run_settings import VOCABULARY_SIZES

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.run.automatic_settings import AutomaticSetting
    from towernmt.run.directory import RunDirectory
    from towernmt.run.resolve import DefaultsMode, ResolvedSettings, SettingsSources
    from towernmt.run.started_run import StartingModel


def settings_text(settings: Any, part: str = "") -> str:
    """Return the settings whose names contain `part`, with their values and meanings, and their values in presets.

    Args:
        settings: settings of a run.
        part: substring of the names, such as `schedule`, `dropout` or `train.batch`; "" for all settings.

    Raises:
        SettingsError: no setting has this substring in its name.
    """
    rows = [row for row in describe(settings) if row[0] not in VOCABULARY_SIZES]
    matches = [row for row in rows if part.lower() in row[0].lower()]
    if not matches:
        words = (word for key, *_ in rows for word in (key, *key.split(".")))
        raise SettingsError(f"--help-settings {part}: no setting has that in its name.{suggestion(part, words)}")
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


_WORKERS_OPTIONS = ("workers", "min_workers", "max_failures", "cpus", "wait", "ray")
_NOT_FOR_WORKERS = (*_WORKERS_OPTIONS, "command", "help_settings", "defaults", "dry_run")


def add_workers_options(parser: argparse.ArgumentParser) -> None:
    """Add `--workers` and its further options."""
    group: Any = parser.add_argument_group("several workers, on Ray")
    group.add_argument("--workers", type=int, metavar="N",
                       help="number of training processes, on a Ray cluster or on this machine; if one is lost, all "
                            "start again from the last checkpoint (needs towernmt[ray])")
    group.add_argument("--min-workers", type=int, metavar="M",
                       help="minimum number of workers to start or resume with if the cluster has no resources for "
                            "all of them (default: all)")
    group.add_argument("--max-failures", type=int, metavar="K",
                       help="maximum number of consecutive failures without a new checkpoint (default: 3)")
    group.add_argument("--cpus", type=int, metavar="N",
                       help="processors of each worker (default: an equal share of all)")
    group.add_argument("--wait", type=float, metavar="SECONDS",
                       help="how long to wait for resources for all workers (default: 60)")
    group.add_argument("--ray", metavar="ADDRESS",
                       help="address of the Ray cluster, or `local` for a new one on this machine (default: "
                            "RAY_ADDRESS, or the cluster of this machine, or a new one)")


def check_workers_options(options: argparse.Namespace) -> None:
    """Refuse the options of `--workers` without `--workers`.

    Raises:
        SettingsError: such an option is specified.
    """
    for name in _WORKERS_OPTIONS[1:]:
        if options.workers is None and getattr(options, name) is not None:
            raise SettingsError(f"{_option(name)} is an option of --workers: pass --workers, too.")


def train_with_workers(options: argparse.Namespace, resolved: ResolvedSettings, data: TrainingData) -> int:
    """Train with several workers, and return the exit status.

    Args:
        options: parsed arguments of `towernmt train`.
        resolved: settings of the run.
        data: training data.

    Raises:
        SettingsError: options that exclude each other, or invalid settings; no worker has started.
    """
    from towernmt.core.settings import check_ranges
    from towernmt.farm.ray_workers import check_ray
    from towernmt.jobs.elastic_training import WorkerTraining, train_by_workers
    from towernmt.run.directory import RunDirectory
    from towernmt.run.resume import check_run_vocabulary

    gpus = gpu_numbers(options.gpu) or []
    _check_workers(options, gpus)
    check_ray("--workers")
    check_ranges(resolved.settings)
    run = RunDirectory(options.logdir)
    run.refuse_prepared_data()
    check_run_vocabulary(run, data)
    training = WorkerTraining(
        worker_arguments(options, resolved.automatic or ()), run, options.workers,
        options.min_workers or options.workers, 3 if options.max_failures is None else options.max_failures,
        options.cpus or 0, len(gpus), 60 if options.wait is None else options.wait, options.ray or "")
    return train_by_workers(training, lambda text: print(text, flush=True))


def worker_arguments(options: argparse.Namespace, automatic: Sequence[AutomaticSetting] = ()) -> list[str]:
    """Return the arguments of `towernmt` in each worker: the same command without the options of `--workers`.

    The defaults are fixed, because a worker that trains alone would otherwise use automatic settings.

    Args:
        options: parsed arguments of `towernmt train`.
        automatic: automatic settings, which all workers use.
    """
    arguments = ["train", "--defaults=fixed"]
    for setting in automatic:
        arguments += ["--set", f"{setting.key}={setting.value}"]
    for name, value in vars(options).items():
        if name in _NOT_FOR_WORKERS or value is None or value is False or value == []:
            continue
        if isinstance(value, list):
            arguments += ["--set", *value]
        else:
            arguments.append(_option(name) if value is True else f"{_option(name)}={value}")
    return arguments


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_workers(options: argparse.Namespace, gpus: Sequence[int]) -> None:
    for name, least in (("workers", 1), ("min_workers", 1), ("max_failures", 0), ("cpus", 1), ("wait", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise SettingsError(f"{_option(name)} {value} must be at least {least}.")
    if (options.min_workers or 1) > options.workers:
        raise SettingsError(f"--min-workers {options.min_workers} is more than --workers {options.workers}.")
    if cluster_from_environment(os.environ) is not None:
        raise SettingsError("TF_CONFIG or SLURM already names the workers, and --workers would start more workers in "
                            "each of them: leave out --workers, or unset the environment variables.")
    if list(gpus) != list(range(len(gpus))):
        example = ",".join(map(str, range(len(gpus))))
        raise SettingsError(f"--gpu {options.gpu}: with --workers Ray assigns the GPUs, and each worker counts its own "
                            f"from 0: write --gpu {example} for {len(gpus)} GPUs per worker.")


def add_monolingual_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training with monolingual text."""
    group = parser.add_argument_group("monolingual text")
    group.add_argument("--monolingual", metavar="FILE",
                       help="text in the target language: a model of the opposite direction is trained first and "
                            "translates it, and its translations, with a tag, are mixed into --data")
    group.add_argument("--source-monolingual", metavar="FILE",
                       help="text in the source language, which a teacher translates; the translations are mixed into "
                            "--data")
    group.add_argument("--teacher", metavar="MODEL", nargs="+",
                       help="model that translates the monolingual text, or an ensemble (default: one that is trained "
                            "first): a run, a package or another model as for --start; for --monolingual, of the "
                            "opposite direction")
    group.add_argument("--no-text-check", action="store_true",
                       help="accept text, and translations of --teacher, that seem to be in another language")


def train_with_text(options: argparse.Namespace) -> int:
    """Train with monolingual text, and return the exit status.

    Args:
        options: parsed arguments of `towernmt train`.

    Raises:
        TowerNMTError: options that exclude each other, or unsuitable text, data or settings.
    """
    _check_monolingual_options(options)
    check_devices(options)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorpack.utils import logger

    from towernmt.core.terminal_log import configure_terminal_log
    from towernmt.dataflow.preparation.prepared_data import open_prepared
    from towernmt.interop.starting_models import open_starting_model
    from towernmt.jobs.monolingual_training import MonolingualOrder, train_with_monolingual_text

    start = starting_model(options)
    models = [open_starting_model(path, "--teacher", options.trust_code) for path in options.teacher or ()]
    sources = settings_sources(options, defaults=defaults_mode(options.defaults, several_workers=False), start=start)
    configure_terminal_log(verbose=options.verbose)
    status = train_with_monolingual_text(MonolingualOrder(
        Path(options.monolingual or options.source_monolingual), "target" if options.monolingual else "source",
        open_prepared(options.data), Path(options.logdir), sources, models, not options.no_text_check), logger.info)
    if status == 0:
        print(next_command(options.logdir))
    return status


def _check_monolingual_options(options: argparse.Namespace) -> None:
    from towernmt.dataflow.batches.training_data import is_prepared

    option = "--monolingual" if options.monolingual else "--source-monolingual"
    if options.monolingual and options.source_monolingual:
        raise SettingsError("--monolingual and --source-monolingual exclude each other: train with one of them, and "
                            "pass the result as --teacher of a second training with the other.")
    if not is_prepared(options.data):
        raise SettingsError(f"{option} needs prepared data, but {mask_uri(options.data)} is unprepared text: prepare "
                            "it with `towernmt prepare`, and pass its --output as --data.")
    excluded = {"--general": options.general, "--vocabulary": options.vocabulary, "--dry-run": options.dry_run,
                "--workers": options.workers}
    for name, value in excluded.items():
        if value:
            raise SettingsError(f"{option} and {name} exclude each other: leave out one of them.")
    if workers_of_cluster() is not None:
        raise SettingsError(f"{option} trains in one process, but TF_CONFIG or SLURM names several workers: unset the "
                            "environment variables.")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt train`."""
    parser.add_argument("--data", metavar="DATA", help="prepared data (a directory, or s3://...), or unprepared text "
                                                       "(a corpora.yaml, or the URI of one source)")
    parser.add_argument("--vocabulary", metavar="PATH",
                        help="for unprepared text: a directory with vocabularies (of prepared data, or of a run), or "
                             "the file of one for both sides (default: those of corpora.yaml, or of the run)")
    parser.add_argument("--start", metavar="MODEL",
                        help="start from the parameters, the sizes and the vocabulary of a trained model: a run, one "
                             "of its checkpoints, a package, or a model of Marian (OPUS-MT, Mozilla), OpenNMT-tf or "
                             "THUMT")
    parser.add_argument("--general", metavar="DATA",
                        help="prepared data of the domain that the model must not forget: a share of its pairs "
                             "(data.general_share) is mixed into --data, and its validation text is a validation set")
    parser.add_argument("--trust-code", action="store_true",
                        help="execute the code of a custom model in the package of --start or --teacher")
    parser.add_argument("--defaults", choices=("automatic", "fixed"),
                        help="settings of a new run that are not specified: automatic values for the corpus, the "
                             "training limit and this machine, each logged with its reason; or the fixed defaults "
                             "of --help-settings (default: automatic, but fixed with several workers, except the "
                             "batch size on GPUs)")
    parser.add_argument("--dry-run", action="store_true",
                        help="print the automatic settings with their reasons, and a forecast of the updates, the "
                             "memory and the end, and train nothing")
    add_run_arguments(parser)
    add_monolingual_options(parser)
    add_workers_options(parser)


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


def run_train(options: argparse.Namespace) -> int:
    """Train a model, and return the exit status."""
    if options.help_settings is not None:
        return print_settings(options)
    if not options.data:
        raise SettingsError("--data is missing: pass a directory that `towernmt prepare` wrote, a corpora.yaml, or the "
                            "URI of a source.")
    if not options.logdir and not options.dry_run:
        raise SettingsError("--logdir is missing: pass a directory for the run.")
    from towernmt.dataflow.batches.training_data import open_training_data, with_general_data
    from towernmt.run.resolve import resolve_settings

    check_workers_options(options)
    if options.monolingual or options.source_monolingual:
        return train_with_text(options)
    for name in ("teacher", "no_text_check"):
        if getattr(options, name):
            raise SettingsError(f"{_option(name)} is an option of --monolingual and --source-monolingual: pass one of "
                                "them, too.")
    workers = workers_of_cluster() if options.workers is None else options.workers
    run = _existing_run(options.logdir)
    if options.logdir and (Path(options.logdir) / MONOLINGUAL_RECORD).is_file():
        raise SettingsError(f"{options.logdir} holds a training with monolingual text: pass the same --monolingual or "
                            "--source-monolingual to resume it, or another --logdir.")
    check_devices(options)
    start = starting_model(options)
    known = run or (start.run if start is not None else None)
    open_data = cache(lambda: with_general_data(open_training_data(
        options.data, options.vocabulary, None if known is None else known.vocabulary), options.general))
    resolved = resolve_settings(settings_sources(
        options, open_data, defaults_mode(options.defaults, workers is not None, bool(options.gpu)), workers, start))
    if options.dry_run:
        return print_forecast(options, resolved, open_data())
    if options.workers is not None:
        return train_with_workers(options, resolved, open_data())
    status = train_resolved(options, resolved, open_data())
    if status == 0:
        print(next_command(options.logdir))
    return status


def starting_model(options: argparse.Namespace) -> StartingModel | None:
    """Return the model of `--start`; None without the option.

    Raises:
        TowerNMTError: the path is not a trained model, or the model is damaged.
    """
    if options.start is None:
        return None
    from towernmt.interop.starting_models import open_starting_model  # imports TensorFlow

    return open_starting_model(options.start, "--start", options.trust_code)


def print_forecast(options: argparse.Namespace, resolved: ResolvedSettings, data: TrainingData) -> int:
    """Print what a training would do, and return the exit status."""
    from datetime import datetime

    from towernmt.run.forecast import forecast_training

    forecast = forecast_training(resolved.settings, data, gpu_numbers(options.gpu), resolved.towers,
                                 resolved.conditions)
    automatic = [setting.sentence for setting in resolved.automatic or ()]
    for line in [*resolved.notes, *automatic, *forecast.lines(datetime.now()), "Nothing was trained or written."]:
        print(line)
    return 0


def defaults_mode(requested: str | None, several_workers: bool, on_gpus: bool = False) -> DefaultsMode:
    """Return the mode of the defaults for the value of `--defaults`.

    Args:
        requested: value of `--defaults`; None for the default.
        several_workers: whether several processes train.
        on_gpus: whether they train on GPUs.

    Raises:
        SettingsError: automatic settings are requested for several workers, which must all have the same settings.
    """
    if several_workers and requested == "automatic":
        raise SettingsError("--defaults automatic depends on one machine, but several workers may run on different "
                            "machines: leave it out.")
    if several_workers and on_gpus and requested is None:
        return "batch"
    return "fixed" if several_workers or requested == "fixed" else "automatic"


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
    from towernmt.run.resolve import Overrides, SettingsSources, read_config

    assigned_values = Overrides("--set", parse_assignments(options.assignments))
    return SettingsSources(
        options.model, options.preset, _existing_run(options.logdir), start=start,
        overrides=(read_config(options.config), assigned_values) if options.config else (assigned_values,),
        defaults=defaults, open_data=open_data, gpus=gpu_numbers(options.gpu), towers=options.towers,
        workers=workers)


def _existing_run(logdir: str | None) -> RunDirectory | None:
    if not logdir:
        return None
    from towernmt.run.directory import RunDirectory

    run = RunDirectory(logdir)
    return run if run.exists() else None


def train_resolved(options: argparse.Namespace, resolved: ResolvedSettings, data: TrainingData) -> int:
    """Train in one process, and return the exit status.

    Args:
        options: parsed arguments of `add_run_arguments`: the directory, the devices and the log.
        resolved: settings of the run.
        data: training data.
    """
    from tensorpack.utils import logger

    from towernmt.core.terminal_log import configure_terminal_log
    from towernmt.run.launch import train_resolved_settings

    configure_terminal_log(verbose=options.verbose)
    if options.gpu is None and options.towers is None and (gpus := visible_gpus()):
        logger.info(f"Training on the CPU. This machine has {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: pass --gpu "
                    f"{','.join(map(str, range(len(gpus))))} to use {'them' if len(gpus) > 1 else 'it'}.")
    return train_resolved_settings(resolved, data, options.logdir, gpu_numbers(options.gpu))


def next_command(logdir: str) -> str:
    """Return the command that translates with a finished run, as a line for a shell."""
    return ("Translate one sentence per line with the model:\n"
            f"  towernmt translate --model {shlex.quote(logdir)} --input FILE")


def gpu_numbers(text: str | None) -> list[int] | None:
    """Return `"0,1"` as `[0, 1]`, and None as None.

    Raises:
        SettingsError: not a comma-separated list of numbers.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
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
