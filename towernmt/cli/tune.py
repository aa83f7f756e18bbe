"""`towernmt tune`: search for settings by many runs, of which the best continue."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from towernmt.cli.run_options import settings_sources
from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.jobs.trials import TrialRow, TrialTable
    from towernmt.jobs.tune_search import SearchLimits, Trial
    from towernmt.run.resolve import SettingsSources
    from towernmt.run.run_settings import Settings


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt tune`."""
    parser.add_argument("--space", required=True, metavar="FILE", help="YAML file with the values of each setting: a "
                        "list of choices, or {uniform: [LOW, HIGH]}, loguniform or integer")
    parser.add_argument("--data", required=True, metavar="DATA", help="the data, as for towernmt train")
    parser.add_argument("--vocabulary", metavar="PATH", help="the vocabulary, as for towernmt train")
    parser.add_argument("--output", required=True, metavar="DIRECTORY",
                        help="directory for the runs of trials, trials.tsv and best.yaml")
    parser.add_argument("--model", help="architecture, as for towernmt train")
    parser.add_argument("--preset", help="named sizes of the model, for example tiny")
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings of all trials")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings of all trials; train.steps is the limit of each")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="number of trials (default: 20)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="simultaneous trials (default: 1)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs per trial (default: 0, the CPU)")
    parser.add_argument("--first-look", type=int, default=0, metavar="STEPS",
                        help="updates until the first selection of trials (default: the first validation)")
    parser.add_argument("--factor", type=int, default=3, metavar="N",
                        help="each selection keeps the best 1/N of the trials for N times as many updates (default: 3)")
    parser.add_argument("--minutes", type=float, default=0, metavar="N", help="time limit of the search")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed of the trials (default: 1)")
    parser.add_argument("--ray", nargs="?", const="", default="local", metavar="ADDRESS",
                        help="use the running Ray cluster, or the one at this address; all its machines need --data "
                             "and --output under the same paths (default: processes of this machine)")
    parser.add_argument("--resume", action="store_true", help="resume the search in --output")


def run_tune(options: argparse.Namespace) -> int:
    """Search for settings, and return the exit status."""
    from towernmt.core.directories import DirectoryLock
    from towernmt.dataflow.batches.training_data import open_training_data
    from towernmt.farm.ray_workers import ray_connection
    from towernmt.jobs.tune_search import check_tune, search
    from towernmt.jobs.tune_space import draw_points, read_space
    from towernmt.run.resolve import resolve_settings

    check_tune()
    options.logdir = options.gpu = options.towers = None        # trials have their own
    sources = settings_sources(options)
    settings = resolve_settings(sources).settings
    limits = _limits(options, settings)
    points = draw_points(read_space(options.space, settings), options.trials, options.seed)
    output = Path(options.output).absolute()
    if not options.resume and (output / "trials").exists():
        raise SettingsError(f"{output} contains a search: pass --resume to resume it, or another --output.")
    if not (output / "trials").exists():
        refuse_foreign_files(output)
    data = open_training_data(options.data, options.vocabulary)
    if not data.validation_sets:
        raise SettingsError(f"{data.directory} has no validation text, by whose scores a search compares trials: "
                            "prepare the data with --valid-source and --valid-target.")
    with DirectoryLock(output, "towernmt tune"):
        table, trials = _trials(options, sources, settings, points, output)
        if len(trials) < options.trials:
            print(f"The space has only {len(trials)} different points.", flush=True)
        with ray_connection(options.ray, 0, lambda text: print(text, flush=True)):
            try:
                stop_signal = search(trials, table, limits, output / "ray",
                                     lambda row: print(trial_report(table, row), flush=True),
                                     lambda text: print(text, flush=True))
            finally:
                _write(output, table)
    status = _print_table(output, table)
    return 128 + stop_signal if stop_signal else status


def refuse_foreign_files(output: Path) -> None:
    """Refuse a directory without a search that contains files which a search would replace.

    Raises:
        SettingsError: names such a file.
    """
    for name in ("trials.tsv", "best.yaml", "ray"):
        if (output / name).exists():
            raise SettingsError(f"{output / name} already exists and does not belong to a search, which would replace "
                                "it: pass another --output, or move the file.")


def _limits(options: argparse.Namespace, settings: Settings) -> SearchLimits:
    """Return the limits of the search.

    Raises:
        SettingsError: trials have no limit, or no validation within their limit.
    """
    from towernmt.jobs.tune_search import SearchLimits

    for name, least in (("trials", 1), ("at_once", 1), ("gpus", 0), ("factor", 2), ("first_look", 0), ("minutes", 0)):
        if not getattr(options, name) >= least:
            raise SettingsError(f"--{name.replace('_', '-')} {getattr(options, name)} must be at least {least}.")
    steps, interval = settings.train.steps, settings.validation.steps
    if not steps:
        raise SettingsError("train.steps=0: a trial needs a limit, for example --set train.steps=3000.")
    if not 0 < interval <= steps:
        raise SettingsError(f"validation.steps={interval}: a trial needs validations within its train.steps={steps}: "
                            f"set validation.steps from 1 to {steps}.")
    if settings.validation.metric_set:
        raise SettingsError(f"validation.metric_set={settings.validation.metric_set}: a search compares trials by the "
                            "first validation set: leave this setting out.")
    first = options.first_look or interval
    if first > steps:
        raise SettingsError(f"--first-look {first} is beyond train.steps={steps}: lower it.")
    return SearchLimits(steps, first, options.factor, options.at_once, options.minutes, options.gpus)


def _trials(options: argparse.Namespace, sources: SettingsSources, settings: Settings,
            points: list[dict[str, Any]], output: Path) -> tuple[TrialTable, list[Trial]]:
    """Return the trials with the results of earlier searches, and write the settings of each into its directory."""
    from towernmt.callbacks.validation_metrics import METRICS
    from towernmt.core.files import write_text
    from towernmt.jobs.trials import SETTINGS, TrialRow, TrialTable, trial_run_directory, validations
    from towernmt.jobs.tune_search import Trial
    from towernmt.run.resolve import Overrides, resolve_settings

    table = TrialTable(METRICS[settings.validation.metric],
                       [TrialRow(number, point) for number, point in enumerate(points, 1)])
    # A search that ends before it has reached a trial again keeps its row, and the best trial.
    if (earlier := output / "trials.tsv").exists():
        table.restore_states(earlier.read_text(encoding="utf-8"))
    trials = []
    for row in table.rows:
        directory = _directory(output, row)
        overrides = (*sources.overrides, Overrides(options.space, row.values))
        text = _as_config(resolve_settings(dataclasses.replace(sources, overrides=overrides)).settings)
        file = directory / SETTINGS
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise SettingsError(f"{file}: the search in {output} has other settings: pass the arguments of the first "
                                "command (--trials may differ), or another --output.")
        directory.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
        arguments = ["train", "--defaults", "fixed", "--data", _absolute_path(options.data), "--logdir",
                     str(trial_run_directory(directory)), "--config", str(file), "--model", settings.architecture]
        if options.vocabulary:
            arguments += ["--vocabulary", _absolute_path(options.vocabulary)]
        if options.gpus:
            arguments += ["--gpu", ",".join(map(str, range(options.gpus)))]
        for step, score in validations(directory, table.metric.scalar()):
            table.add_score(row, step, score)
        trials.append(Trial(row, directory, arguments))
    return table, trials


def _directory(output: Path, row: TrialRow) -> Path:
    return output / "trials" / f"{row.number:04d}"


def _absolute_path(text: str) -> str:
    """Return an absolute path, because a machine may lack the directory of the command; a URI is unchanged."""
    return text if "://" in text else str(Path(text).absolute())


def _as_config(settings: Settings) -> str:
    """Return all settings as the text of a file for --config."""
    from towernmt.run.run_settings import VOCABULARY_SIZES

    content = dataclasses.asdict(settings)
    for key in VOCABULARY_SIZES:
        content["model"].pop(key.partition(".")[2], None)
    del content["architecture"]
    return yaml.safe_dump(content, sort_keys=False)


def trial_report(table: TrialTable, row: TrialRow) -> str:
    """Return a line on the state of a trial, with the number of ended trials and the leading trial."""
    score = "" if row.score is None else f", best {table.metric.label} {table.metric.text(row.score)}"
    states = [table_row.state for table_row in table.rows]
    best_trial = table.best()
    lead = ""
    if best_trial is not None and best_trial.score is not None:
        lead = f"; so far trial {best_trial.number} leads with {table.metric.text(best_trial.score)}"
    ended_count = sum(state not in ("waiting", "running") for state in states)
    return (f"trial {row.number} {row.state}: {row.step} updates{score} ({ended_count}/{len(states)} ended{lead})"
            + (f": {row.reason}" if row.reason else ""))


def _write(output: Path, table: TrialTable) -> None:
    """Write the table, and the settings of the best trial."""
    from towernmt.core.files import write_text
    from towernmt.jobs.trials import SETTINGS

    write_text(output / "trials.tsv", table.as_tsv())
    if best_trial := table.best():
        write_text(output / "best.yaml", (_directory(output, best_trial) / SETTINGS).read_text(encoding="utf-8"))


def _print_table(output: Path, table: TrialTable) -> int:
    """Print the table; 0 if there is a best trial."""
    from towernmt.jobs.trials import INTERRUPTED, WAITING, trial_run_directory

    print(f"\n{table.as_text()}")
    best_trial = table.best()
    incomplete_count = sum(row.state in (WAITING, INTERRUPTED) for row in table.rows)
    if incomplete_count:
        print(f"{incomplete_count} of {len(table.rows)} trials are incomplete: the same command with --resume "
              "continues them.")
    if best_trial is None:
        print(f"No trial has a score; {output / 'trials.tsv'} contains the reasons.")
        return 1
    run = trial_run_directory(_directory(output, best_trial))
    print(f"The best is trial {best_trial.number}; its run is {run}, its settings, "
          f"for --config, are in\n  {shlex.quote(str(output / 'best.yaml'))}")
    return 0
