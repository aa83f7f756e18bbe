"""The outcome of an attempt, derived from the ends of its workers."""

from __future__ import annotations

import signal

import pytest

from towernmt.core.errors import WorkerLostError
from towernmt.jobs.attempt import WorkerExit
from towernmt.jobs.elastic_training import OutcomeKind, attempt_outcome

MISSES = WorkerLostError.exit_status


def ending(worker: int, status: int | None, message: str = "", killed: bool = False) -> WorkerExit:
    return WorkerExit(worker, f"10.0.0.{worker}:20000", status, message, killed)


def test_workers_that_end_well_are_done() -> None:
    assert attempt_outcome([ending(1, 0), ending(0, 0)], None).kind == OutcomeKind.DONE


@pytest.mark.parametrize("status, why", [
    (-9, "Worker 1 (10.0.0.1:20000) was ended by SIGKILL, which the system sends when memory is short."),
    (-11, "Worker 1 (10.0.0.1:20000) was ended by SIGSEGV."),
    (143, "Worker 1 (10.0.0.1:20000) was ended by SIGTERM, with a checkpoint."),
    (None, "Worker 1 (10.0.0.1:20000) was lost with its machine, or with its process of Ray.")])
def test_a_worker_that_is_killed_is_lost_whoever_misses_it_first(status: int | None, why: str) -> None:
    endings = [ending(0, MISSES, "Worker 1 is gone: start all"), ending(1, status)]
    assert attempt_outcome(endings, None) == (OutcomeKind.LOST, why)


def test_a_worker_that_is_lost_before_it_begins_is_told_with_what_ray_says() -> None:
    outcome = attempt_outcome([WorkerExit(0, "", None, "No module named 'towernmt'")], None)
    assert outcome == (OutcomeKind.LOST, "A worker that had not begun was lost with its machine, or with its process "
                                         "of Ray (No module named 'towernmt').")


@pytest.mark.parametrize("why", [
    "Another worker did not answer worker 0 within 20 s, or is gone", "Worker 1 (10.0.0.1:20000) is gone"])
def test_where_no_process_died_the_loss_is_told_by_who_missed_another(why: str) -> None:
    endings = [ending(0, MISSES, f"{why}: nothing more is saved"), ending(1, -9, killed=True)]
    assert attempt_outcome(endings, None) == (OutcomeKind.LOST, f"{why}.")


@pytest.mark.parametrize("failed, why", [
    (ending(1, 1, "no file b.txt."), "Worker 1 (10.0.0.1:20000): no file b.txt."),
    (ending(0, 1, "train.steps=x."), "train.steps=x."),
    (ending(1, 1), "Worker 1 (10.0.0.1:20000) ended with status 1; its output is in log/worker-1.log of the run."),
    (ending(0, 1), "Worker 0 (10.0.0.0:20000) ended with status 1; its output is above.")])
def test_an_error_of_one_worker_is_shown_and_not_taken_for_a_loss(failed: WorkerExit, why: str) -> None:
    others = [ending(2, MISSES, "Worker 1 is gone: start all"), ending(3, -9, killed=True)]
    assert attempt_outcome([others[0], failed, others[1]], None) == (OutcomeKind.FAILED, why)


@pytest.mark.parametrize("of_chief", [128 + signal.SIGTERM, -signal.SIGTERM, 0])
def test_an_end_that_was_asked_for_is_no_loss(of_chief: int) -> None:
    endings = [ending(0, of_chief), ending(1, 0), ending(2, -9, killed=True)]
    assert attempt_outcome(endings, signal.SIGTERM).kind == OutcomeKind.STOPPED


def test_a_loss_while_the_end_was_asked_for_is_a_loss() -> None:
    assert attempt_outcome([ending(1, -9), ending(0, MISSES)], signal.SIGTERM).kind == OutcomeKind.LOST
