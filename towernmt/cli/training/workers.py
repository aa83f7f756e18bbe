"""The options by which `towernmt train` has workers train, on Ray: from them to the training of many."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.dataflow.order.training_data import TrainingData
    from towernmt.run.settings import Settings

_OPTIONS = ("workers", "min_workers", "max_failures", "cpus", "wait", "ray")
_OF_THE_PROGRAM = ("command", "help_settings", "defaults")


def add_workers_options(parser: argparse.ArgumentParser) -> None:
    """`--workers` and what belongs to it."""
    group: Any = parser.add_argument_group("several workers, on Ray")
    group.add_argument("--workers", type=int, metavar="N",
                       help="train by so many processes, which are watched, and started again from the last checkpoint "
                            "when one is lost: on the Ray cluster there is, or on this machine (needs towernmt[ray])")
    group.add_argument("--min-workers", type=int, metavar="M",
                       help="begin, or go on, with fewer workers where there is no room for all, but with no fewer "
                            "than this (default: all)")
    group.add_argument("--max-failures", type=int, metavar="K",
                       help="losses in a row, without a new checkpoint, after which a new attempt begins (default: 3)")
    group.add_argument("--cpus", type=int, metavar="N",
                       help="processors of each worker (default: as many as all can have)")
    group.add_argument("--wait", type=float, metavar="SECONDS",
                       help="how long to wait for room for all workers (default: 60)")
    group.add_argument("--ray", metavar="ADDRESS",
                       help="of the Ray cluster, or `local` for one on this machine alone (default: RAY_ADDRESS, or "
                            "the cluster that this machine belongs to, or a new one on it)")


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
    from towernmt.dataflow.prepare.running.ray_cluster import check_ray
    from towernmt.elastic.training import WorkerTraining, train_by_workers
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
    from towernmt.cluster.description import cluster_from_environment

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
