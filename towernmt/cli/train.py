"""`towernmt train`: train a model on prepared data or directly from sources, or resume a run.

With `--workers`, several workers train on Ray. `--help-settings` prints every setting, or those of a group or with a
part of a name, and the values of presets.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.cluster.cluster_description import cluster_from_environment
from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, assigned, describe, load_yaml, parse_assignments
from towernmt.models.architectures import ARCHITECTURES, settings_and_presets
from towernmt.run.run_settings import FACTS

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.run.automatic_choice import Choice
    from towernmt.run.automatic_settings import Circumstances
    from towernmt.run.directory import RunDirectory
    from towernmt.run.run_settings import Settings


def settings_text(settings: Any, part: str = "") -> str:
    """The settings whose names contain `part`, with their values and meanings, and the presets as far as they set them.

    Args:
        settings: of a run.
        part: of a name, such as `schedule`, `dropout` or `train.batch`; "" for all.
    Raises:
        SettingsError: no setting has that in its name.
    """
    rows = [row for row in describe(settings) if row[0] not in FACTS]
    chosen = [row for row in rows if part.lower() in row[0].lower()]
    if not chosen:
        near = difflib.get_close_matches(part, {word for key, *_ in rows for word in (key, *key.split("."))}, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise SettingsError(f"--help-settings {part}: no setting has that in its name{hint}")
    text = "".join(f"{key}={assigned(value)}\n    {meaning}\n" for key, value, meaning in chosen)
    return text + _presets_text(settings.architecture, {key for key, *_ in chosen})


def _presets_text(architecture: str, keys: set[str]) -> str:
    """Return the values of these keys in the presets of an architecture; "" if no preset sets one."""
    lines = []
    for name, values in settings_and_presets(architecture)[1].items():
        assignments = [shlex.quote(f"{key}={assigned(value)}") for key, value in values.items()
                       if f"model.{key}" in keys]
        if assignments or not values:
            lines.append(f"  --preset {name}: {' '.join(assignments) or 'the defaults'}\n")
    return f"Presets of {architecture} (in the group model):\n{''.join(lines)}" if "=" in "".join(lines) else ""


_OPTIONS = ("workers", "min_workers", "max_failures", "cpus", "wait", "ray")
_OF_THE_PROGRAM = ("command", "help_settings", "defaults")


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


def wants_workers(options: argparse.Namespace) -> bool:
    """Whether workers are asked for.

    Raises:
        SettingsError: an option that belongs to them is there without them.
    """
    for name in _OPTIONS[1:]:
        if options.workers is None and getattr(options, name) is not None:
            raise SettingsError(f"{_option(name)} is for training by workers: pass --workers, too.")
    return options.workers is not None


def train_with_workers(options: argparse.Namespace, settings: Settings, data: TrainingData,
                       gpus: Sequence[int] | None) -> int:
    """Train by workers; returns the exit status.

    What can be seen to be wrong before they start is refused here.

    Args:
        settings: of the run.
        data: that it trains on.
        gpus: of each worker; None for towers on the CPU.
    Raises:
        SettingsError: options that cannot be asked for together, or settings that cannot work.
    """
    from towernmt.core.settings import check_ranges
    from towernmt.farm.ray_workers import check_ray
    from towernmt.jobs.elastic_training import WorkerTraining, train_by_workers
    from towernmt.run.directory import RunDirectory
    from towernmt.run.resume import check_vocabularies

    _check(options, gpus or [])
    check_ray("--workers")
    check_ranges(settings)
    run = RunDirectory(options.logdir)
    run.check_place()
    check_vocabularies(run, data)
    training = WorkerTraining(
        arguments_of_each(options), run, options.workers, options.min_workers or options.workers,
        3 if options.max_failures is None else options.max_failures, options.cpus or 0, len(gpus or []),
        60 if options.wait is None else options.wait, options.ray or "")
    return train_by_workers(training, lambda text: print(text, flush=True))


def arguments_of_each(options: argparse.Namespace) -> list[str]:
    """What `towernmt` gets in each worker: the same command without the options of this module.

    One that trains alone, since there is no room for more, would else choose what no other is to have.
    """
    arguments = ["train", "--defaults=fixed"]
    for name, value in vars(options).items():
        if name in (*_OPTIONS, *_OF_THE_PROGRAM) or value is None or value is False or value == []:
            continue
        if isinstance(value, list):
            arguments += ["--set", *value]
        else:
            arguments.append(_option(name) if value is True else f"{_option(name)}={value}")
    return arguments


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check(options: argparse.Namespace, gpus: Sequence[int]) -> None:
    from towernmt.cluster.cluster_description import cluster_from_environment

    for name, least in (("workers", 1), ("min_workers", 1), ("max_failures", 0), ("cpus", 1), ("wait", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise SettingsError(f"{_option(name)} {value} must be at least {least}.")
    if (options.min_workers or 1) > options.workers:
        raise SettingsError(f"--min-workers {options.min_workers} is more than --workers {options.workers}.")
    if cluster_from_environment(os.environ) is not None:
        raise SettingsError("TF_CONFIG, or SLURM, names the workers already, and --workers would start more in each: "
                            "leave one of them out.")
    if list(gpus) != list(range(len(gpus))):
        example = ",".join(map(str, range(len(gpus))))
        raise SettingsError(f"--gpu {options.gpu}: with --workers Ray chooses the GPUs, and each worker counts its own "
                            f"from 0: write --gpu {example} for {len(gpus)} GPUs of each worker.")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt train`."""
    parser.add_argument("--data", metavar="DATA", help="prepared data (a directory, or s3://...), or unprepared text "
                                                       "(a corpora.yaml, or the URI of one source)")
    parser.add_argument("--vocabulary", metavar="PATH",
                        help="for unprepared text: a directory with vocabularies (of prepared data, or of a run), or "
                             "the file of one for both sides (default: those of corpora.yaml, or of the run)")
    parser.add_argument("--defaults", choices=("chosen", "fixed"),
                        help="settings of a new run that are not specified: automatic values for the corpus, the "
                             "training limit and this machine, each logged with its reason (chosen); or the defaults "
                             "of --help-settings (fixed) (default: chosen, but fixed with several workers)")
    add_run_arguments(parser)
    add_workers_options(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say how to train, shared with the example programs."""
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
    """Train as the command line says."""
    if options.help_settings is not None:
        return print_settings(options)
    if not options.data:
        raise SettingsError("--data is missing: pass a directory that `towernmt prepare` wrote, a corpora.yaml, or the "
                            "URI of a source.")
    if not options.logdir:
        raise SettingsError("--logdir is missing: pass the directory that the run shall live in.")
    settings = settings_of(options)
    by_workers, chosen = wants_workers(options), wants_chosen(options)
    data = training_data(options)
    if by_workers:
        return train_with_workers(options, settings, data, gpu_numbers(options.gpu))
    status = train_prepared(options, data, settings, chosen)
    if status == 0:
        print(next_command(options.logdir))
    return status


def wants_chosen(options: argparse.Namespace) -> bool:
    """Whether what is not set is chosen: in a new run, unless several workers train, which must all have the same.

    Raises:
        SettingsError: it is asked for with several workers.
    """
    several = _trains_with_others(options)
    if several and options.defaults == "chosen":
        raise SettingsError("--defaults chosen looks at one machine, and several workers may have more: leave it out.")
    return options.defaults != "fixed" and not several and _is_new(options)


def _is_new(options: argparse.Namespace) -> bool:
    """Whether there is no run yet, or one that was killed before it could tell what was chosen."""
    from towernmt.checkpoint.checkpoint_files import latest_checkpoint
    from towernmt.run.automatic_choice import CHOSEN

    run = _run_of(options)
    return run is None or latest_checkpoint(run.checkpoints) is None and not (run.path / CHOSEN).is_file()


def _trains_with_others(options: argparse.Namespace) -> bool:
    return options.workers is not None or cluster_from_environment(os.environ) is not None


def next_command(logdir: str) -> str:
    """Return how to translate with a finished run, as a line for a shell."""
    return ("Translate with it, a sentence a line:\n"
            f"  towernmt translate --model {shlex.quote(logdir)} --input FILE")


def training_data(options: argparse.Namespace) -> TrainingData:
    """What --data names, with --vocabulary, or else the vocabulary of the run that goes on."""
    from towernmt.dataflow.batches.training_data import open_training_data
    from towernmt.run.directory import RunDirectory

    run_directory = RunDirectory(options.logdir)
    former = run_directory.vocabulary if run_directory.exists() else None
    return open_training_data(options.data, options.vocabulary, former)


def train_prepared(options: argparse.Namespace, data: TrainingData, settings: Settings, chosen: bool = False) -> int:
    """Train on a corpus with the devices of the command line.

    Args:
        chosen: choose what the command line does not set.
    """
    from towernmt.core.terminal_log import configure_terminal_log
    from towernmt.run.automatic_settings import ChosenRecord
    from towernmt.run.launch import train

    configure_terminal_log(verbose=options.verbose)
    choices: list[Choice] = []
    if chosen:
        settings, choices = _chosen(options, data, settings)
    elif not _trains_with_others(options):
        _go_on_as_chosen(options, settings)
    return train(settings, data, options.logdir, gpu_numbers(options.gpu), options.towers,
                 callbacks_before=lambda: [ChosenRecord(choices, Path(options.logdir))] if chosen else [])


def _go_on_as_chosen(options: argparse.Namespace, settings: Settings) -> None:
    """Take the towers that were chosen when the run began, and tell what was chosen by another limit."""
    from tensorpack.utils import logger

    from towernmt.run.resume import chosen_for, note_of_other_limit

    run = _run_of(options)
    if run is None:
        return
    chosen = chosen_for(run)
    if options.gpu is None and options.towers is None:
        options.towers = chosen.get("--towers")
    note = note_of_other_limit(chosen, run.settings_like(settings), settings)
    if note:
        logger.info(note)


def _chosen(options: argparse.Namespace, data: TrainingData, settings: Settings) -> tuple[Settings, list[Choice]]:
    """The settings with what nobody has set, and what was chosen; --towers is chosen in the options."""
    from towernmt.run.automatic_settings import choose, choose_towers, circumstances_of, needs_rates
    from towernmt.run.product_rates import product_rates

    gpus = gpu_numbers(options.gpu)
    measured = needs_rates(settings, given_settings(options, settings), gpus)
    circumstances = circumstances_of(data, gpus, product_rates(gpus) if measured else None)
    preset = _proposed_preset(options, data, settings, circumstances)
    if preset is not None:
        options.preset = preset.value
        settings = settings_of(options)
    settings, choices = choose(settings, circumstances, given_settings(options, settings))
    choices[:0] = [] if preset is None else [preset]
    if gpus is None and options.towers is None:
        choices.append(choose_towers(settings, circumstances))
        options.towers = choices[-1].value
    return settings, choices


def _proposed_preset(options: argparse.Namespace, data: TrainingData, settings: Settings, at: Circumstances
                     ) -> Choice | None:
    """The preset for a corpus whose pairs are known, unless the command line says anything of the model's size."""
    from towernmt.dataflow.preparation.prepared_data import PreparedData
    from towernmt.models.architectures import settings_and_presets
    from towernmt.run.automatic_choice import PROPOSED, proposed_preset
    from towernmt.run.automatic_settings import choose

    if options.model or options.preset or settings.init.checkpoint or not isinstance(data, PreparedData):
        return None
    given = given_settings(options, settings)
    presets = settings_and_presets(settings.architecture)[1]
    if given & {f"model.{name}" for preset in PROPOSED for name in presets[preset]}:
        return None
    return proposed_preset(data.pairs, at.gpus, at.tokens(choose(settings, at, given)[0]))


def given_settings(options: argparse.Namespace, settings: Settings) -> set[str]:
    """The dotted keys that the command line sets: by --preset, --config and --set."""
    from towernmt.models.architectures import settings_and_presets

    given = {f"model.{name}" for name in settings_and_presets(settings.architecture)[1].get(options.preset or "", ())}
    for _, values in _values_of(options):
        given |= set(values)
    return given


def settings_of(options: argparse.Namespace) -> Settings:
    """Defaults (or the preset), then the run's saved settings, then --config, then --set."""
    from towernmt.run.run_settings import default_settings

    run = _run_of(options)
    if run is not None:
        settings = run.settings(options.model)
        if options.preset is not None:
            settings.model = _with_preset(settings, options.preset)
    else:
        settings = default_settings(options.model or "transformer", options.preset)
    for origin, values in _values_of(options):
        settings = with_user_settings(settings, values, origin)
    return settings


def _values_of(options: argparse.Namespace) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What --config and --set give: where from, and dotted keys to values."""
    if options.config:
        from towernmt.checkpoint.records import without_provenance
        from towernmt.run.run_settings import FACTS

        content = without_provenance(load_yaml(Path(options.config)))       # which may be the settings.yaml of a run
        yield options.config, {key: value for key, value in content.items() if key not in FACTS}
    yield "--set", parse_assignments(options.assignments)


def with_user_settings(settings: Settings, values: Mapping[str, Any], origin: str = "--set") -> Settings:
    """Return the settings with the values that a user sets.

    Args:
        values: dotted key to value.
        origin: where they come from.
    Raises:
        SettingsError: a vocabulary's size, which is no setting; and what `apply_overrides` raises.
    """
    from towernmt.run.run_settings import FACTS

    for key in values:
        if key in FACTS:
            raise SettingsError(f"{origin}: {key} is no setting, since the vocabularies of --data have a size: leave "
                                "it out, or prepare the data with another vocabulary (towernmt prepare --vocab-size).")
    return apply_overrides(settings, values, origin)


def _run_of(options: argparse.Namespace) -> RunDirectory | None:
    """The run that goes on, or None."""
    if not options.logdir:
        return None
    from towernmt.run.directory import RunDirectory

    run = RunDirectory(options.logdir)
    return run if run.exists() else None


def _with_preset(saved: Settings, preset: str) -> Any:
    """The preset, and what it does not name as the run has it: dropout and the like, and all where it took its sizes
    from another run. Other sizes are those of the preset, so that a run of another one is refused.
    """
    import dataclasses

    from towernmt.models.architectures import settings_and_presets
    from towernmt.run.resume import is_free
    from towernmt.run.run_settings import FACTS, default_settings

    sizes = default_settings(saved.architecture, preset).model
    named = settings_and_presets(saved.architecture)[1][preset]
    kept = {f.name: getattr(saved.model, f.name) for f in dataclasses.fields(saved.model)
            if f.name not in named and (f"model.{f.name}" in FACTS or saved.init.checkpoint or is_free(f.name))}
    return dataclasses.replace(sizes, **kept)


def gpu_numbers(text: str | None) -> list[int] | None:
    """`"0,1"` as `[0, 1]`.

    Raises:
        SettingsError: not a comma-separated list of numbers.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise SettingsError(f"--gpu {text}: expected GPU numbers separated by commas, for example 0,1.") from None


def print_settings(options: argparse.Namespace) -> int:
    """Print the settings that are asked for, with their defaults and meanings, and the presets."""
    print(settings_text(settings_of(options), options.help_settings), end="")
    return 0
