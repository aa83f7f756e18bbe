"""`towernmt train`: train a model on prepared data or directly from sources, or resume a run.

`train_with_workers` trains on Ray, and `train_with_text` with monolingual text. `--help-settings` prints every setting,
or those of a group or with a part of a name, and the values of presets.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from towernmt.cli.run_options import (
    add_run_arguments,
    check_devices,
    defaults_mode,
    existing_run,
    gpu_numbers,
    next_command,
    note_of_fixed_defaults,
    option_name,
    print_settings,
    settings_sources,
    starting_model,
    workers_of_cluster,
)
from towernmt.cli.train_with_text import add_monolingual_options, train_with_text
from towernmt.cli.train_with_workers import add_workers_options, check_workers_options, train_with_workers
from towernmt.core.directories import MONOLINGUAL_RECORD
from towernmt.core.errors import SettingsError
from towernmt.core.gpus import visible_gpus

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.run.resolve import ResolvedSettings


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
                             "batch size on GPUs and the learning rate of a starting model)")
    parser.add_argument("--dry-run", action="store_true",
                        help="print the automatic settings with their reasons, and a forecast of the updates, the "
                             "memory and the end, and train nothing")
    add_run_arguments(parser)
    add_monolingual_options(parser)
    add_workers_options(parser)


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
            raise SettingsError(f"{option_name(name)} is an option of --monolingual and --source-monolingual: pass one "
                                "of them, too.")
    workers = workers_of_cluster() if options.workers is None else options.workers
    if options.dry_run and workers is not None:
        raise SettingsError("--dry-run forecasts a training in one process, and " + (
            "TF_CONFIG or SLURM names several workers: unset the environment variables."
            if options.workers is None else "--workers starts several: leave out one of them."))
    run = existing_run(options.logdir)
    if options.logdir and (Path(options.logdir) / MONOLINGUAL_RECORD).is_file():
        raise SettingsError(f"{options.logdir} holds a training with monolingual text: pass the same --monolingual or "
                            "--source-monolingual to resume it, or another --logdir.")
    check_devices(options)
    start = starting_model(options)
    source_run = run or (start.run if start is not None else None)
    open_data = cache(lambda: with_general_data(open_training_data(
        options.data, options.vocabulary, None if source_run is None else source_run.vocabulary), options.general))
    mode = defaults_mode(options.defaults, workers is not None)
    resolved = resolve_settings(settings_sources(options, open_data, mode, workers, start))
    if workers is not None and run is None and options.defaults is None:
        resolved = replace(resolved, notes=[*resolved.notes, note_of_fixed_defaults(resolved.automatic or ())])
    if options.dry_run:
        return print_forecast(options, resolved, open_data())
    if options.workers is not None:
        return train_with_workers(options, resolved, open_data())
    status = train_resolved(options, resolved, open_data())
    if status == 0:
        print(next_command(options.logdir))
    return status


def print_forecast(options: argparse.Namespace, resolved: ResolvedSettings, data: TrainingData) -> int:
    """Print what a training would do, and return the exit status."""
    from datetime import datetime

    from towernmt.run.directory import RunDirectory
    from towernmt.run.forecast import forecast_training, why_nothing_to_train

    if options.logdir and (reason := why_nothing_to_train(resolved.settings, data, RunDirectory(options.logdir))):
        lines = [reason]
    else:
        lines = forecast_training(resolved.settings, data, gpu_numbers(options.gpu), resolved.towers,
                                  resolved.conditions, existing_run(options.logdir)).lines(datetime.now())
    automatic = [setting.sentence for setting in resolved.automatic or ()]
    for line in [*resolved.notes, *automatic, *lines, "Nothing was trained or written."]:
        print(line)
    return 0


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
