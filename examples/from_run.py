"""Command-line arguments of the example programs that continue training from a finished run."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from towernmt import SettingsError, parse_assignments

if TYPE_CHECKING:
    from towernmt import Settings
    from towernmt.dataflow import TrainingData


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --model, --data, --logdir, and the options for devices and settings."""
    parser.add_argument("--model", metavar="RUN", required=True,
                        help="the --logdir of a finished `towernmt train`, or one of its checkpoints")
    parser.add_argument("--data", metavar="DATA", required=True,
                        help="prepared data with the run's vocabulary, a corpora.yaml, or the URI of a source")
    parser.add_argument("--logdir", required=True, help="directory of the new run; an existing run resumes")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--gpu", metavar="N,N", help="GPU numbers, one tower per GPU, for example 0,1,2,3")
    devices.add_argument("--towers", type=int, metavar="N", help="number of towers on the CPU")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings that override those of the run, for example train.steps=500")


def settings_from_run(options: argparse.Namespace, defaults: Sequence[str] = ()) -> Settings:
    """Return the settings of the new run with --set applied.

    A resumed run keeps its own settings. A new one takes those of the finished run without its initial values, its
    limits, its validation and checkpoint times and its averaging, and then `defaults`.

    Args:
        options: parsed arguments of `add_arguments`.
        defaults: assignments in the form of --set, including validation.steps and checkpoint.steps.
    """
    from towernmt.checkpoint import initial_checkpoint
    from towernmt.models import with_guided_heads
    from towernmt.run import InitSettings, Overrides, RunDirectory, SettingsSources, resolve_settings

    assigned = Overrides("--set", parse_assignments(options.assignments))
    new = RunDirectory(options.logdir)
    finished, _ = initial_checkpoint(options.model)
    if new.path.resolve() == finished.path.resolve():
        raise SettingsError(f"--logdir {options.logdir} is the run of --model: pass a directory for the new run.")
    if new.exists():
        return resolve_settings(SettingsSources(run=new, overrides=(assigned,))).settings
    settings = RunDirectory(finished.path).settings()
    train = dataclasses.replace(settings.train, steps=0, epochs=0, minutes=0.0, stop_patience=0)
    validation = dataclasses.replace(settings.validation, minutes=0.0)
    checkpoint = dataclasses.replace(settings.checkpoint, minutes=0.0, average=0)
    base = dataclasses.replace(settings, model=with_guided_heads(settings.model), train=train, validation=validation,
                               checkpoint=checkpoint, init=InitSettings(checkpoint=str(options.model)))
    overrides = (Overrides("defaults", parse_assignments(defaults)), assigned)
    return resolve_settings(SettingsSources(base=base, overrides=overrides)).settings


def data_from_run(options: argparse.Namespace) -> TrainingData:
    """Open --data; unprepared text is encoded with the vocabulary of the finished run."""
    from towernmt.checkpoint import initial_checkpoint
    from towernmt.dataflow import open_training_data

    finished, _ = initial_checkpoint(options.model)
    return open_training_data(options.data, None, finished.vocabulary)
