"""Training by workers on Ray: attempts, each from the last checkpoint, until the training is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from towernmt.checkpoint.checkpoint_files import checkpoint_steps
from towernmt.core.errors import TowerNMTError, WorkerLostError
from towernmt.core.machine import processors
from towernmt.dataflow.preparation.ray_cluster import connected
from towernmt.jobs.attempt import (
    Attempt,
    Ending,
    EndRequest,
    EndRequestedError,
    Failures,
    Kind,
    Outcome,
    Share,
    end_requests,
    find_room,
    largest_share,
    machines_of_cluster,
    outcome_of,
)
from towernmt.jobs.worker_actor import FileOutput, TerminalOutput, WorkerOutput
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
        address: address of the cluster; see `connected`.
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


def train_by_workers(training: WorkerTraining, say: Callable[[str], None]) -> int:
    """Train until the end.

    Args:
        say: is called with what happens to workers.
    Returns:
        the exit status: 0, or 128 + the number of the signal that stopped the run after a checkpoint.
    Raises:
        TowerNMTError: a worker failed by something that a new attempt would not mend, or Ray did.
        WorkerLostError: workers were lost too often.
    """
    with connected(training.address, max(processors(), training.workers), say), end_requests() as request:
        try:
            share = _share(training)
            failures = Failures(training.failures, _last_step(training))
            number = 1
            while True:
                outcome = outcome_of(_attempt(training, share, number, request, say), request.number)
                if outcome.kind != Kind.LOST:
                    return _status(outcome, request)
                _refuse_to_go_on(training, outcome, failures, request)
                number += 1
                say(f"{outcome.why} Attempt {number} {_from_where(training)}.")
        except EndRequestedError:
            return 128 + (request.number or 0)


def _share(training: WorkerTraining) -> Share:
    share = largest_share(machines_of_cluster(), training.workers, training.gpus)
    return share._replace(processors=training.processors) if training.processors else share


def _attempt(training: WorkerTraining, share: Share, number: int, request: EndRequest,
             say: Callable[[str], None]) -> Sequence[Ending]:
    group, count = find_room(training.workers, training.least, share, training.seconds, request.check,
                             say)
    attempt = Attempt(group, count, share, request)
    try:
        lost = attempt.begin(training.arguments, training.run.path)
        if lost:
            return lost
        fewer = f" of {training.workers}" if count < training.workers else ""
        say(f"Attempt {number}: {count}{fewer} {'worker' if count == 1 else 'workers'} with {share} each at "
            f"{', '.join(attempt.addresses)}.{_files(training.run.log, count)}")
        outputs: list[WorkerOutput] = [TerminalOutput()]
        for worker, address in enumerate(attempt.addresses[1:], 1):
            title = f"--- attempt {number}, worker {worker} of {count} at {address}"
            outputs.append(FileOutput(_file(training.run.log, worker), title))
        return attempt.follow(outputs)
    finally:
        attempt.close()


def _files(log: Path, count: int) -> str:
    if count == 1:
        return ""
    others = "the other is in" if count == 2 else f"the others are in {_file(log, 1)} to"
    return f" Worker 0 speaks here; {others} {_file(log, count - 1)}."


def _file(log: Path, worker: int) -> Path:
    return log / f"worker-{worker}.log"


def _status(outcome: Outcome, request: EndRequest) -> int:
    if outcome.kind == Kind.FAILED:
        raise TowerNMTError(outcome.why)
    return 0 if outcome.kind == Kind.DONE else 128 + (request.number or 0)


def _refuse_to_go_on(training: WorkerTraining, outcome: Outcome, failures: Failures, request: EndRequest) -> None:
    if request.number is not None:
        raise WorkerLostError(f"{outcome.why} The end was asked for meanwhile: the same command "
                              f"{_from_where(training)}.")
    if not failures.may_go_on(_last_step(training)):
        times = f"{failures.count} attempts in a row were" if failures.count > 1 else "An attempt was"
        raise WorkerLostError(f"{outcome.why} {times} lost without a checkpoint since (--max-failures "
                              f"{training.failures}): the same command {_from_where(training)}.")


def _from_where(training: WorkerTraining) -> str:
    step = _last_step(training)
    return "begins again, as there is no checkpoint yet" if step < 0 else f"goes on from step {step}"


def _last_step(training: WorkerTraining) -> int:
    return max(checkpoint_steps(training.run.checkpoints), default=-1)
