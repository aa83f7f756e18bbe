"""The number of failures after which a training may be restarted."""

from __future__ import annotations

from towernmt.jobs.elastic_training import FailureCount


def test_so_many_failures_in_a_row_are_allowed() -> None:
    failures = FailureCount(2, -1)
    assert [failures.may_continue(-1) for _ in range(3)] == [True, True, False]


def test_a_new_checkpoint_begins_the_count_again() -> None:
    failures = FailureCount(1, 8)
    assert [failures.may_continue(step) for step in (8, 16, 24, 24)] == [True, True, True, False]


def test_no_failure_may_be_allowed() -> None:
    assert not FailureCount(0, 8).may_continue(16)
