"""A search for settings on Ray Tune: trials in separate processes, of which the better ones continue (ASHA)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.farm.ray_workers import LongWait, Resources, cluster_machines, max_worker_resources
from towernmt.jobs.attempt import StopRequest, stop_requests
from towernmt.jobs.trials import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    STOPPED,
    TrialRow,
    TrialRun,
    TrialTable,
    last_line,
)

_MAX_RESTARTS = 3       # maximum number of restarts of a trial that failed or whose process or machine was lost
_START_SECONDS = 15.0   # seconds until the first trial begins if the cluster has free resources
_STEP_SECONDS = 2.0     # maximum seconds of a step, after which a trial can stop; after ten, Ray Tune would kill it


@dataclass(frozen=True)
class SearchLimits:
    """Limits of a search and of its trials.

    Attributes:
        steps: number of updates of a trial that is not stopped.
        first_selection: number of updates until the first selection of trials.
        factor: each selection keeps the best 1/factor of the trials, for factor times as many updates.
        max_concurrent: number of simultaneous trials.
        minutes: time limit of the search; 0 for no limit.
        gpus: number of GPUs of a trial.
    """

    steps: int
    first_selection: int
    factor: int = 3
    max_concurrent: int = 1
    minutes: float = 0
    gpus: int = 0


@dataclass(frozen=True)
class Trial:
    """A trial to run.

    Attributes:
        row: its row in the table.
        directory: its directory.
        arguments: arguments of `towernmt`.
    """

    row: TrialRow
    directory: Path
    arguments: Sequence[str]


def check_tune() -> None:
    """Check that Ray Tune is installed.

    Raises:
        SettingsError: it is not installed.
    """
    if any(find_spec(name) is None for name in ("ray", "pandas", "pyarrow", "tensorboardX")):
        raise SettingsError("towernmt tune needs Ray Tune: pip install 'towernmt[ray]'.")


def search(trials: Sequence[Trial], table: TrialTable, limits: SearchLimits, work: Path,
           report: Callable[[TrialRow], None], report_wait: Callable[[str], None]) -> int | None:
    """Run trials on the connected Ray cluster, and write their states and scores into the table.

    Args:
        trials: the trials.
        table: the table, which has a row for each trial.
        limits: limits of the search.
        work: directory for Ray, which is removed at the end.
        report: called with each row that has changed.
        report_wait: called with a message if the cluster is busy.

    Returns:
        The number of the signal that stopped the search; None if there was none.

    Raises:
        SettingsError: no machine of the cluster has enough GPUs for a trial.
        KeyboardInterrupt: Ctrl-C was pressed twice.
    """
    # No output of Ray Tune on the terminal, no error for a trial that fails before its first score, and no handler of
    # Ctrl-C, after which Ray Tune would return as if all trials had ended.
    os.environ.update(TUNE_WARN_THRESHOLD_S="3600", RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_STRICT_METRIC_CHECKING="1",
                      TUNE_DISABLE_SIGINT_HANDLER="1")
    from ray import tune

    cpus = trial_processors(cluster_machines(), limits)
    arguments = {trial.row.number: (trial.directory, list(trial.arguments)) for trial in trials}
    trainable = tune.with_resources(_trainable(arguments, table.metric.scalar(), Path.cwd(), cpus),
                                    {"cpu": cpus, "gpu": limits.gpus})
    scheduler = _scheduler(limits)
    rows = {trial.row.number: trial.row for trial in trials}
    first_wait = LongWait("trial", Resources(cpus, limits.gpus), report_wait, _START_SECONDS)
    try:
        with stop_requests() as request:
            tune.Tuner(
                trainable, param_space={"number": tune.grid_search(list(rows))},
                tune_config=tune.TuneConfig(metric="value", mode=table.metric.mode, scheduler=scheduler,
                                            max_concurrent_trials=limits.max_concurrent,
                                            time_budget_s=limits.minutes * 60 or None),
                run_config=tune.RunConfig(name="search", storage_path=str(work), verbose=0, stop=_stopper(request),
                                          failure_config=tune.FailureConfig(max_failures=_MAX_RESTARTS),
                                          callbacks=[_callback(rows, table, scheduler, report, first_wait)])).fit()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for row in rows.values():
            if row.state == RUNNING:
                row.state = INTERRUPTED
    return request.signal_number


def trial_processors(machines: Sequence[Resources], limits: SearchLimits) -> int:
    """Return the number of processors of each trial: as many as all simultaneous trials can have.

    Ray would wait for ever for a trial that fits into no machine.

    Args:
        machines: the machines of the cluster.
        limits: limits of the search.

    Raises:
        SettingsError: no machine has enough GPUs for a trial.
    """
    trials = limits.max_concurrent
    if limits.gpus:
        trials = min(trials, sum(machine.gpus // limits.gpus for machine in machines))
    if not trials:
        raise SettingsError(f"--gpus {limits.gpus}: no machine has as many GPUs for a trial (the machines: "
                            f"{'; '.join(map(str, machines))}): pass fewer.")
    return max_worker_resources(machines, trials, limits.gpus).processors


def _trainable(arguments: dict[int, tuple[Path, list[str]]], scalar: str, working_directory: Path, processors: int
               ) -> Any:
    """Return the class of Ray Tune's trials, each of which is one `TrialRun`."""
    from ray import tune

    class Training(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.trial = TrialRun(*arguments[config["number"]], scalar, working_directory, processors)

        def step(self) -> dict[str, Any]:
            report = self.trial.next(_STEP_SECONDS)
            result: dict[str, Any] = {"step": report.step, "reason": report.reason, "ended": report.ended,
                                      "done": report.ended}
            return result if report.score is None else {**result, "value": report.score}

        def cleanup(self) -> None:
            self.trial.stop()

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Do nothing: the run has its own checkpoints."""

        def load_checkpoint(self, checkpoint: Any) -> None:
            """Do nothing: the run resumes from its own checkpoints."""

    return Training


def _scheduler(limits: SearchLimits) -> Any:
    from ray.tune.schedulers import ASHAScheduler

    class Halving(ASHAScheduler):
        """ASHA that remembers which trials it stopped."""

        def __init__(self) -> None:
            # One more than the last update, at which a trial ends by itself.
            super().__init__(time_attr="step", max_t=max(limits.steps, limits.first_selection) + 1,
                             grace_period=limits.first_selection, reduction_factor=limits.factor)
            self.stopped: set[int] = set()

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision = super().on_trial_result(tune_controller, trial, result)
            if decision == self.STOP:
                self.stopped.add(trial.config["number"])
            return str(decision)

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
            if "value" in result:
                super().on_trial_complete(tune_controller, trial, result)

    return Halving()


def _stopper(request: StopRequest) -> Any:
    from ray import tune

    class Stopping(tune.Stopper):
        """Ends the search after a signal, like the time limit."""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return request.signal_number is not None

    return Stopping()


def _callback(rows: dict[int, TrialRow], table: TrialTable, scheduler: Any, report: Callable[[TrialRow], None],
              first_wait: LongWait) -> Any:
    from ray import tune

    class Following(tune.Callback):
        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            if not first_wait.is_over:
                first_wait.update(any(trial.status != trial.PENDING for trial in trials))

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            rows[trial.config["number"]].reason = ""    # of an earlier search
            self._set_state(trial, RUNNING)

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any],
                            **info: Any) -> None:
            row = rows[trial.config["number"]]
            if "value" in result:
                table.add_score(row, result["step"], result["value"])
            if result["ended"]:
                row.reason = result["reason"]
                self._set_state(trial, FAILED if row.reason else FINISHED)
            elif "value" in result:
                report(row)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            row = rows[trial.config["number"]]
            if row.state == RUNNING:
                self._set_state(trial, STOPPED if row.number in scheduler.stopped else INTERRUPTED)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            error = last_line(Path(trial.error_file))       # a stack trace, or Ray's reason for the loss of a process
            rows[trial.config["number"]].reason = f"it failed more than {_MAX_RESTARTS} times; the last time: {error}"
            self._set_state(trial, FAILED)

        def _set_state(self, trial: Any, state: str) -> None:
            row = rows[trial.config["number"]]
            row.state = state
            report(row)

    return Following()
