"""`towernmt train --workers`: train with several workers on Ray."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from towernmt.cli.run_options import gpu_numbers, option_name
from towernmt.cluster.cluster_description import cluster_from_environment
from towernmt.core.errors import SettingsError
from towernmt.core.setting_values import assigned

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData
    from towernmt.run.resolve import ResolvedSettings
    from towernmt.run.rules.automatic_value import AutomaticSetting

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
            raise SettingsError(f"{option_name(name)} is an option of --workers: pass --workers, too.")


def train_with_workers(options: argparse.Namespace, resolved: ResolvedSettings, data: TrainingData) -> int:
    """Print the notes and the automatic settings, train with several workers, and return the exit status.

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
    for sentence in (*resolved.notes, *(setting.sentence for setting in resolved.automatic or ())):
        print(sentence, flush=True)
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
        arguments += ["--set", f"{setting.key}={assigned(setting.value)}"]
    for name, value in vars(options).items():
        if name in _NOT_FOR_WORKERS or value is None or value is False or value == []:
            continue
        if isinstance(value, list):
            arguments += ["--set", *value]
        else:
            arguments.append(option_name(name) if value is True else f"{option_name(name)}={value}")
    return arguments


def _check_workers(options: argparse.Namespace, gpus: Sequence[int]) -> None:
    for name, least in (("workers", 1), ("min_workers", 1), ("max_failures", 0), ("cpus", 1), ("wait", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise SettingsError(f"{option_name(name)} {value} must be at least {least}.")
    if (options.min_workers or 1) > options.workers:
        raise SettingsError(f"--min-workers {options.min_workers} is more than --workers {options.workers}: pass at "
                            f"most --min-workers {options.workers}.")
    if cluster_from_environment(os.environ) is not None:
        raise SettingsError("TF_CONFIG or SLURM already names the workers, and --workers would start more workers in "
                            "each of them: leave out --workers, or unset the environment variables.")
    if list(gpus) != list(range(len(gpus))):
        example = ",".join(map(str, range(len(gpus))))
        raise SettingsError(f"--gpu {options.gpu}: with --workers Ray assigns the GPUs, and each worker counts its own "
                            f"from 0: write --gpu {example} for {len(gpus)} GPUs per worker.")
