"""The shared state of the feeders alone, without TensorFlow."""

from __future__ import annotations

import threading

from tests.waiting import PATIENCE
from towernmt.core.errors import FeederError
from towernmt.input_source.feeding import FeederRun


def test_waiting_for_an_item_ends_when_it_arrives() -> None:
    run = FeederRun(["a"], in_order=True, allow_empty=False)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(run.wait_for_item(0)))
    waiter.start()
    assert run.take_turn(0)
    run.enqueued_by(0)
    waiter.join(PATIENCE)
    assert answers == [True]


def test_waiting_for_an_item_ends_at_the_end_of_the_data() -> None:
    run = FeederRun(["a"], in_order=True, allow_empty=True)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(run.wait_for_item(0)))
    waiter.start()
    assert run.take_turn(0)
    run.end(0)
    waiter.join(PATIENCE)
    assert answers == [False] and run.error is None


def test_an_error_does_not_finish_a_run_while_another_feeder_still_enqueues() -> None:
    run = FeederRun(["a", "b"], in_order=False, allow_empty=False)
    assert run.take_turn(0) and run.take_turn(1)
    run.fail(0, FeederError("broken"))
    assert not run.finished
    run.enqueued_by(1)
    assert run.finished and run.wait_for_item(0) and not run.wait_for_item(1)


def test_the_first_error_is_kept() -> None:
    run = FeederRun(["a", "b"], in_order=False, allow_empty=False)
    assert run.take_turn(0) and run.take_turn(1)
    first = FeederError("first")
    run.fail(0, first)
    run.fail(1, FeederError("second"))
    assert run.error is first


def test_after_an_error_no_feeder_gets_a_turn() -> None:
    run = FeederRun(["a", "b"], in_order=True, allow_empty=False)
    assert run.take_turn(0)
    run.fail(0, FeederError("broken"))
    assert not run.take_turn(1)


def test_a_stop_wakes_a_feeder_that_waits_for_its_turn() -> None:
    run = FeederRun(["a", "b"], in_order=True, allow_empty=False)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(run.take_turn(1)))
    waiter.start()
    run.request_stop()
    waiter.join(PATIENCE)
    assert answers == [False]


def test_a_long_wait_is_reported_repeatedly_with_its_feeder() -> None:
    run, reports = FeederRun(["a", "b"], in_order=True, allow_empty=False), []
    run.records[0].reading_since = run.records[1].reading_since = 0.0

    def report(seconds: float) -> None:
        reports.append((seconds, run.awaited()))
        if len(reports) == 3:
            assert run.take_turn(0)
            run.enqueued_by(0)

    assert run.wait_for_item(0, patience=0.001, report=report)
    assert len(reports) == 3 and reports[0][0] >= 0.001
    assert all(cause.startswith("a has been reading for ") and ";" not in cause for _, cause in reports)


def test_a_feeder_that_fails_without_its_turn_blocks_no_other() -> None:
    run = FeederRun(["a", "b"], in_order=True, allow_empty=False)
    run.fail(1, FeederError("broken"))
    assert run.finished and not run.take_turn(0) and not run.wait_for_item(0)
