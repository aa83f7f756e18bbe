"""`towernmt train --monolingual` and `--source-monolingual`: train with text in one language, too."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from towernmt.cli.run_options import (
    check_devices,
    defaults_mode,
    next_command,
    settings_sources,
    starting_model,
    workers_of_cluster,
)
from towernmt.core.errors import SettingsError, mask_uri


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
    from towernmt.jobs.monolingual_training import MonolingualJob, train_with_monolingual_text

    start = starting_model(options)
    models = [open_starting_model(path, "--teacher", options.trust_code) for path in options.teacher or ()]
    sources = settings_sources(options, defaults=defaults_mode(options.defaults, several_workers=False), start=start)
    configure_terminal_log(verbose=options.verbose)
    status = train_with_monolingual_text(MonolingualJob(
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
