"""`towernmt train`: train a model on prepared data or straight from sources, or go on with a run."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt.cli.training.help_settings import settings_text
from towernmt.cli.training.workers import add_workers_options, train_with_workers, wants_workers
from towernmt.cluster.description import cluster_from_environment
from towernmt.core.errors import SettingsError
from towernmt.core.settings import all_keys, apply_overrides, former_settings, load_yaml, parse_assignments
from towernmt.models import ARCHITECTURES

if TYPE_CHECKING:
    from towernmt.chosen.choice import Choice
    from towernmt.chosen.circumstances import Circumstances
    from towernmt.dataflow.order.training_data import TrainingData
    from towernmt.run.directory import RunDirectory
    from towernmt.run.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `towernmt train`."""
    parser.add_argument("--data", metavar="DATA", help="what `towernmt prepare` wrote (a directory, or s3://...), or "
                                                       "unprepared text: a corpora.yaml, or the URI of one source")
    parser.add_argument("--vocabulary", metavar="PATH",
                        help="for unprepared text: a directory with vocabularies (of prepared data, or of a run), or "
                             "the file of one for both sides (default: what corpora.yaml says, or the run's)")
    parser.add_argument("--defaults", choices=("chosen", "fixed"),
                        help="what a new run has where nothing is set: values chosen from the corpus, the limit and "
                             "this machine, each told with its reason; or the defaults of --help-settings "
                             "(default: chosen, but fixed with several workers)")
    add_run_arguments(parser)
    add_workers_options(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say how to train, shared with the example programs."""
    parser.add_argument("--logdir", help="directory of the run; if it holds one already, that run goes on")
    parser.add_argument("--model", default=None, help=f"architecture: {', '.join(ARCHITECTURES)}; or one of "
                                                           "your own, as my_model.py:MyModel or package.module:MyModel")
    parser.add_argument("--preset", default=None, help="named sizes of the model, for example tiny")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--gpu", metavar="N,N", help="GPU numbers, one tower each, for example 0,1,2,3")
    devices.add_argument("--towers", type=int, metavar="N", help="N towers on the CPU")
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings, for example data.batch_tokens=4096; any number, may be repeated")
    parser.add_argument("--verbose", action="store_true",
                        help="show all that the run's log file gets: the table of variables, each step of the setup")
    parser.add_argument("--help-settings", nargs="?", const="", metavar="PART",
                        help="list the settings (those with PART in their names), and what each preset sets, and exit")


def run(options: argparse.Namespace) -> int:
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
    from towernmt.checkpoint.files import latest_checkpoint
    from towernmt.chosen.choice import CHOSEN

    run = _run_of(options)
    return run is None or latest_checkpoint(run.checkpoints) is None and not (run.path / CHOSEN).is_file()


def _trains_with_others(options: argparse.Namespace) -> bool:
    return options.workers is not None or cluster_from_environment(os.environ) is not None


def next_command(logdir: str) -> str:
    """What a finished run is for, as a line that a shell takes."""
    return ("Translate with it, a sentence a line:\n"
            f"  towernmt translate --model {shlex.quote(logdir)} --input FILE")


def training_data(options: argparse.Namespace) -> TrainingData:
    """What --data names, with --vocabulary, or else the vocabulary of the run that goes on."""
    from towernmt.dataflow.order.training_data import open_training_data
    from towernmt.run.directory import RunDirectory

    run_directory = RunDirectory(options.logdir)
    former = run_directory.vocabulary if run_directory.exists() else None
    return open_training_data(options.data, options.vocabulary, former)


def train_prepared(options: argparse.Namespace, data: TrainingData, settings: Settings, chosen: bool = False) -> int:
    """Train on a corpus with the devices of the command line.

    Args:
        chosen: choose what the command line does not set.
    """
    from towernmt.chosen.record import ChosenRecord
    from towernmt.core.terminal.terminal_log import mend_terminal
    from towernmt.run.launch import train

    mend_terminal(verbose=options.verbose)
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

    from towernmt.chosen.going_on import chosen_for, note_of_other_limit

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
    from towernmt.chosen.circumstances import circumstances_of, needs_rates
    from towernmt.chosen.product_rates import product_rates
    from towernmt.chosen.rules import choose, choose_towers

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
    from towernmt.chosen.preset import PROPOSED, proposed_preset
    from towernmt.chosen.rules import choose
    from towernmt.dataflow.prepared.prepared_data import PreparedData
    from towernmt.models import settings_and_presets

    if options.model or options.preset or settings.init.checkpoint or not isinstance(data, PreparedData):
        return None
    given = given_settings(options, settings)
    presets = settings_and_presets(settings.architecture)[1]
    if given & {f"model.{name}" for preset in PROPOSED for name in presets[preset]}:
        return None
    return proposed_preset(data.pairs, at.gpus, at.tokens(choose(settings, at, given)[0]))


def given_settings(options: argparse.Namespace, settings: Settings) -> set[str]:
    """The dotted keys that the command line sets: by --preset, --config and --set."""
    from towernmt.models import settings_and_presets

    given = {f"model.{name}" for name in settings_and_presets(settings.architecture)[1].get(options.preset or "", ())}
    for origin, values in _values_of(options):
        given |= set(former_settings(settings).translated(values, all_keys(settings), origin))
    return given


def settings_of(options: argparse.Namespace) -> Settings:
    """Defaults (or the preset), then the run's saved settings, then --config, then --set."""
    from towernmt.run.settings import default_settings

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
        from towernmt.checkpoint.provenance import without_provenance
        from towernmt.run.settings import FACTS

        content = without_provenance(load_yaml(Path(options.config)))       # which may be the settings.yaml of a run
        yield options.config, {key: value for key, value in content.items() if key not in FACTS}
    yield "--set", parse_assignments(options.assignments)


def with_user_settings(settings: Settings, values: Mapping[str, Any], origin: str = "--set") -> Settings:
    """The settings with values that a user gives; a line on standard error tells new names of former keys.

    Args:
        values: dotted key to value.
        origin: where they come from.
    Raises:
        SettingsError: a vocabulary's size, which is no setting; and what `apply_overrides` raises.
    """
    from towernmt.run.settings import FACTS

    for key in values:
        if key in FACTS:
            raise SettingsError(f"{origin}: {key} is no setting, since the vocabularies of --data have a size: leave "
                                "it out, or prepare the data with another vocabulary (towernmt prepare --vocab-size).")
    changed = apply_overrides(settings, values, origin)
    note = former_settings(settings).note(values, all_keys(settings))
    if note:
        print(f"{origin}: {note}", file=sys.stderr)
    return changed


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

    from towernmt.models import settings_and_presets
    from towernmt.run.resume import is_free
    from towernmt.run.settings import FACTS, default_settings

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
