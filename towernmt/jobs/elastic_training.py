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
        workers: maximum number of workers.
        least: minimum number of workers.
        failures: number of attempts in a row that may fail without writing a checkpoint.
        processors: number of processors of each worker; 0: the largest number that all workers can have.
        gpus: number of GPUs of each worker; 0 for towers on the CPU.
        seconds: time limit for reserving resources for the maximum number of workers.
        address: address of the cluster; see `ray_connection`.
    """

    arguments: Sequence[str]
    run: RunDirectory
    workers: int
    least: int
    failures: int = 3
    processors: int = 0
    gpus: int = 0
    seconds: float = 60
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
    with ray_connection(training.address, max(processors(), training.workers), report), stop_requests() as request:
        try:
            share = max_worker_resources(cluster_machines(), training.workers, training.gpus)
            if training.processors:
                share = share._replace(processors=training.processors)
            failures = FailureCount(training.failures, _last_step(training))
            number = 1
            while True:
                outcome = judge_attempt(_attempt(training, share, number, request, report), request.number)
                if outcome.kind == OutcomeKind.FAILED:
                    raise TowerNMTError(outcome.why)
                if outcome.kind != OutcomeKind.LOST:
                    return 0 if outcome.kind == OutcomeKind.DONE else 128 + (request.number or 0)
                _check_continue(training, outcome, failures, request)
                number += 1
                report(f"{outcome.why} Attempt {number} {_resume_point(training)}.")
        except StopRequestedError:
            return 128 + (request.number or 0)


def _attempt(training: WorkerTraining, share: Resources, number: int, request: StopRequest,
             report: Callable[[str], None]) -> Sequence[WorkerExit]:
    group, count = reserve_workers(training.workers, training.least, share, training.seconds, request.check, report)
    attempt = Attempt(group, count, share, request)
    try:
        lost = attempt.begin(training.arguments, training.run.path)
        if lost:
            return lost
        fewer = f" of {training.workers}" if count < training.workers else ""
        report(f"Attempt {number}: {count}{fewer} {'worker' if count == 1 else 'workers'} with {share} each at "
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
    if request.number is not None:
        raise WorkerLostError(f"{outcome.why} A stop was requested meanwhile: the same command "
                              f"{_resume_point(training)}.")
    if not failures.may_continue(_last_step(training)):
        times = f"{failures.count} attempts in a row were" if failures.count > 1 else "An attempt was"
        raise WorkerLostError(f"{outcome.why} {times} lost without a checkpoint since (--max-failures "
                              f"{training.failures}): the same command {_resume_point(training)}.")


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
        most: maximum number of failures in a row.
        step: step of the run's last checkpoint; -1 if it has none.
    """

    def __init__(self, most: int, step: int) -> None:
        self._most, self._step, self.count = most, step, 0

    def may_continue(self, step: int) -> bool:
        """Count a failure; returns whether a new attempt may follow.

        Args:
            step: step of the run's last checkpoint now.
        """
        if step > self._step:
            self._step, self.count = step, 0
        self.count += 1
        return self.count <= self._most


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
        why: the reason, a sentence, if a worker was lost or failed.
    """

    kind: OutcomeKind
    why: str = ""


def judge_attempt(ends: Sequence[WorkerExit], request: int | None) -> AttemptOutcome:
    """Return the outcome of an attempt.

    When a worker ends, the others detect the loss and end with the status of `WorkerLostError`. So the first worker
    with another status is the reason.

    Args:
        ends: the ends of all workers, in their order in time.
        request: the signal that was sent to worker 0; None for none.
    """
    missing = WorkerLostError.exit_status
    if request is not None and all(end.killed or end.status in (0, 128 + request, -request) for end in ends):
        return AttemptOutcome(OutcomeKind.STOPPED)
    own = [end for end in ends if not end.killed]
    first = next((end for end in own if end.status not in (0, missing)), None)
    if first is None:
        first = next((end for end in own if end.status == missing), None)
        if first is None:
            return AttemptOutcome(OutcomeKind.DONE)
        # The rest of the message is advice for a user who starts the workers himself.
        return AttemptOutcome(OutcomeKind.LOST, f"{first.message.partition(': ')[0] or f'{first.name} lost another'}.")
    if first.status is None:
        reason = f" ({first.message})" if first.message else ""
        return AttemptOutcome(OutcomeKind.LOST,
                              f"{first.name} was lost with its machine, or with its process of Ray{reason}.")
    if ended_by_signal(first.status):
        saved = ", with a checkpoint" if first.status > 128 else ""
        number = -first.status if first.status < 0 else first.status - 128
        name = describe_status(-number) if not saved else describe_status(-number).partition(",")[0]
        return AttemptOutcome(OutcomeKind.LOST, f"{first.name} was ended by {name}{saved}.")
    if first.message:
        return AttemptOutcome(OutcomeKind.FAILED,
                              first.message if first.worker == 0 else f"{first.name}: {first.message}")
    where = f"in log/worker-{first.worker}.log of the run" if first.worker else "above"
    return AttemptOutcome(OutcomeKind.FAILED, f"{first.name} ended with status {first.status}; its output is {where}.")
