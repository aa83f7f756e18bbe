"""Arguments of the example programs that begin with a finished run and train on in their own way."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from towernmt.cli.training.train import with_user_settings
from towernmt.core.errors import SettingsError
from towernmt.core.settings import apply_overrides, parse_assignments

if TYPE_CHECKING:
    from towernmt.dataflow.order.training_data import TrainingData
    from towernmt.run.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --data, --logdir, devices and settings."""
    parser.add_argument("--model", metavar="RUN", required=True,
                        help="the --logdir of a finished `towernmt train`, or one of its checkpoints")
    parser.add_argument("--data", metavar="DATA", required=True,
                        help="prepared data, a corpora.yaml, or the URI of a source, in the run's vocabulary")
    parser.add_argument("--logdir", required=True, help="directory of the new run; if it holds one, that run goes on")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--gpu", metavar="N,N", help="GPU numbers, one tower each, for example 0,1,2,3")
    devices.add_argument("--towers", type=int, metavar="N", help="N towers on the CPU")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings in place of the run's, for example train.steps=500; any number")


def settings_from_run(options: argparse.Namespace, defaults: Sequence[str] = ()) -> Settings:
    """Those of the new run, if it goes on; else those of the finished one without its limits, its clock and its
    averaging, then `defaults`; and --set over both.

    Args:
        defaults: assignments, as --set takes them; validation.steps and checkpoint.steps among them.
    """
    from towernmt.checkpoint.start_from import initial_checkpoint
    from towernmt.run.directory import RunDirectory

    new = RunDirectory(options.logdir)
    finished, _ = initial_checkpoint(options.model)
    if new.path.resolve() == finished.path.resolve():
        raise SettingsError(f"--logdir {options.logdir} is the run of --model: pass a directory for the new run.")
    if new.exists():
        settings = new.settings()
    else:
        settings = RunDirectory(finished.path).settings()
        train = dataclasses.replace(settings.train, steps=0, epochs=0, minutes=0.0, stop_patience=0)
        validation = dataclasses.replace(settings.validation, minutes=0.0)
        checkpoint = dataclasses.replace(settings.checkpoint, minutes=0.0, average=0)
        init = dataclasses.replace(settings.init, checkpoint=str(options.model))
        settings = dataclasses.replace(settings, train=train, validation=validation, checkpoint=checkpoint, init=init)
        settings = apply_overrides(settings, parse_assignments(defaults))
    return with_user_settings(settings, parse_assignments(options.assignments))


def data_from_run(options: argparse.Namespace) -> TrainingData:
    """What --data names; unprepared text gets the finished run's vocabulary."""
    from towernmt.checkpoint.start_from import initial_checkpoint
    from towernmt.dataflow.order.training_data import open_training_data

    finished, _ = initial_checkpoint(options.model)
    return open_training_data(options.data, None, finished.vocabulary)
