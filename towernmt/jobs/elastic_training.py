"""Training by several workers on Ray: attempts, each from the last checkpoint, until the training is done.

The workers of an attempt are actors of a farm's backend; each starts a training process on its machine. When one is
lost, the others cannot continue, so the attempt ends and the next one starts all workers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.core.errors import TowerNMTError, WorkerLostError
from towernmt.core.machine import processors
from towernmt.farm.farm import describe_status
from towernmt.farm.ray_workers import Resources, cluster_machines, max_worker_resources, ray_connection, reserve_workers
from towernmt.jobs.attempt import Attempt, StopRequest, StopRequestedError, WorkerExit, stop_requests
from towernmt.jobs.training_process import FileOutput, TerminalOutput, WorkerOutput, ended_by_signal
from towernmt.run.directory import RunDirectory


@dataclass(frozen=True)
class WorkerTraining:
    """A training, and the resources of its workers.

    Attributes:
        arguments: arguments of `towernmt` in each worker.
        run: its run directory.
        max_workers: maximum number of workers.
        min_workers: minimum number of workers.
        max_failures: number of attempts in a row that may fail without writing a checkpoint.
        processors: number of processors of each worker; 0: the largest number that all workers can have.
        gpus: number of GPUs of each worker; 0 for towers on the CPU.
        timeout: time limit in seconds for reserving resources for the maximum number of workers.
        address: address of the cluster; see `ray_connection`.
    """

    arguments: Sequence[str]
    run: RunDirectory
    max_workers: int
    min_workers: int
    max_failures: int = 3
    processors: int = 0
    gpus: int = 0
    timeout: float = 60
    address: str = ""


def train_by_workers(training: WorkerTraining, report: Callable[[str], None]) -> int:
    """Train until the end; returns the exit status: 0, or 128 + the number of the signal that stopped the run.

    Args:
        training: the training.
        report: called with messages about the workers.

    Raises:
        TowerNMTError: a worker failed in a way that a new attempt would not fix, or Ray did.
        WorkerLostError: workers were lost too often.
    """
    with ray_connection(training.address, max(processors(), training.max_workers), report), stop_requests() as request:
        try:
            resources = max_worker_resources(cluster_machines(), training.max_workers, training.gpus)
            if training.processors:
                resources = resources._replace(processors=training.processors)
            failures = FailureCount(training.max_failures, _last_step(training))
            number = 1
            while True:
                outcome = attempt_outcome(_attempt(training, resources, number, request, report), request.signal_number)
                if outcome.kind == OutcomeKind.FAILED:
                    raise TowerNMTError(outcome.reason)
                if outcome.kind != OutcomeKind.LOST:
                    return 0 if outcome.kind == OutcomeKind.DONE else 128 + (request.signal_number or 0)
                _check_continue(training, outcome, failures, request)
                number += 1
                report(f"{outcome.reason} Attempt {number} {_resume_point(training)}.")
        except StopRequestedError:
            return 128 + (request.signal_number or 0)


def _attempt(training: WorkerTraining, resources: Resources, number: int, request: StopRequest,
             report: Callable[[str], None]) -> Sequence[WorkerExit]:
    group, count = reserve_workers(training.max_workers, training.min_workers, resources, training.timeout,
                                   request.check, report)
    attempt = Attempt(group, count, resources, request)
    try:
        lost = attempt.begin(training.arguments, training.run.path)
        if lost:
            return lost
        of_maximum = f" of {training.max_workers}" if count < training.max_workers else ""
        workers = "worker" if count == 1 else "workers"
        report(f"Attempt {number}: {count}{of_maximum} {workers} with {resources} each at "
               f"{', '.join(attempt.addresses)}.{_log_files(training.run.log, count)}")
        outputs: list[WorkerOutput] = [TerminalOutput()]
        for worker, address in enumerate(attempt.addresses[1:], 1):
            title = f"--- attempt {number}, worker {worker} of {count} at {address}"
            outputs.append(FileOutput(_log_file(training.run.log, worker), title))
        return attempt.follow(outputs)
    finally:
        attempt.close()


def _log_files(log: Path, count: int) -> str:
    if count == 1:
        return ""
    others = "that of the other is in" if count == 2 else f"that of the others is in {_log_file(log, 1)} to"
    return f" The output of worker 0 is shown here; {others} {_log_file(log, count - 1)}."


def _log_file(log: Path, worker: int) -> Path:
    return log / f"worker-{worker}.log"


def _check_continue(training: WorkerTraining, outcome: AttemptOutcome, failures: FailureCount, request: StopRequest
                    ) -> None:
    """Refuse a new attempt after a request to stop, or after too many failures.

    Raises:
        WorkerLostError: no attempt may follow.
    """
    if request.signal_number is not None:
        raise WorkerLostError(f"{outcome.reason} A stop was requested meanwhile: the same command "
                              f"{_resume_point(training)}.")
    if not failures.may_continue(_last_step(training)):
        times = f"{failures.count} attempts in a row were" if failures.count > 1 else "An attempt was"
        raise WorkerLostError(f"{outcome.reason} {times} lost without a checkpoint since (--max-failures "
                              f"{training.max_failures}): the same command {_resume_point(training)}.")


def _resume_point(training: WorkerTraining) -> str:
    step = _last_step(training)
    return "begins again, because it has no checkpoint yet" if step < 0 else f"resumes from step {step}"


def _last_step(training: WorkerTraining) -> int:
    return max(checkpoint_steps(training.run.checkpoints), default=-1)


class FailureCount:
    """Counts the failed attempts since the last one that wrote a checkpoint.

    Attributes:
        count: number of failures in a row.

    Args:
        max_failures: maximum number of failures in a row.
        step: step of the run's last checkpoint; -1 if it has none.
    """

    def __init__(self, max_failures: int, step: int) -> None:
        self._max_failures, self._step, self.count = max_failures, step, 0

    def may_continue(self, step: int) -> bool:
        """Count a failure; returns whether a new attempt may follow.

        Args:
            step: step of the run's last checkpoint now.
        """
        if step > self._step:
            self._step, self.count = step, 0
        self.count += 1
        return self.count <= self._max_failures


class OutcomeKind(Enum):
    """The kinds of outcomes of an attempt.

    Attributes:
        DONE: the training is complete.
        STOPPED: a signal of the user stopped it.
        LOST: a worker was lost; a new attempt can resume.
        FAILED: a worker failed; a new attempt would fail, too.
    """

    DONE = auto()
    STOPPED = auto()
    LOST = auto()
    FAILED = auto()


class AttemptOutcome(NamedTuple):
    """The outcome of an attempt.

    Attributes:
        kind: its kind.
        reason: the reason, a sentence, if a worker was lost or failed.
    """

    kind: OutcomeKind
    reason: str = ""


def attempt_outcome(exits: Sequence[WorkerExit], stop_signal: int | None) -> AttemptOutcome:
    """Return the outcome of an attempt.

    When a worker ends, the others detect the loss and end with the status of `WorkerLostError`. So the first worker
    with another status is the reason.

    Args:
        exits: the exits of all workers, in their order in time.
        stop_signal: the signal that was sent to worker 0; None for none.
    """
    lost_other = WorkerLostError.exit_status
    stopped = () if stop_signal is None else (0, 128 + stop_signal, -stop_signal)
    if stop_signal is not None and all(exit.killed or exit.status in stopped for exit in exits):
        return AttemptOutcome(OutcomeKind.STOPPED)
    own_exits = [exit for exit in exits if not exit.killed]
    cause = next((exit for exit in own_exits if exit.status not in (0, lost_other)), None)
    if cause is None:
        cause = next((exit for exit in own_exits if exit.status == lost_other), None)
        if cause is None:
            return AttemptOutcome(OutcomeKind.DONE)
        # The rest of the message is advice for a user who starts the workers himself.
        return AttemptOutcome(OutcomeKind.LOST, f"{cause.message.partition(': ')[0] or f'{cause.name} lost another'}.")
    if cause.status is None:
        reason = f" ({cause.message})" if cause.message else ""
        return AttemptOutcome(OutcomeKind.LOST,
                              f"{cause.name} was lost with its machine, or with its process of Ray{reason}.")
    if ended_by_signal(cause.status):
        saved = ", with a checkpoint" if cause.status > 128 else ""
        number = -cause.status if cause.status < 0 else cause.status - 128
        name = describe_status(-number) if not saved else describe_status(-number).partition(",")[0]
        return AttemptOutcome(OutcomeKind.LOST, f"{cause.name} was ended by {name}{saved}.")
    if cause.message:
        return AttemptOutcome(OutcomeKind.FAILED,
                              cause.message if cause.worker == 0 else f"{cause.name}: {cause.message}")
    where = f"in log/worker-{cause.worker}.log of the run" if cause.worker else "above"
    return AttemptOutcome(OutcomeKind.FAILED, f"{cause.name} ended with status {cause.status}; its output is {where}.")
