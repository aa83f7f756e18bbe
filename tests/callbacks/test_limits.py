"""Early stopping and the limits of steps and minutes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.callbacks.stateful import Patience
from towernmt.callbacks.stopping import EarlyStopping, StopAfterMinutes, StopAtStep
from towernmt.core.errors import SettingsError
from towernmt.core.world import World, in_world


@given(scores=st.lists(st.integers(0, 5), max_size=30), patience=st.integers(1, 5), delta=st.integers(0, 2),
       mode=st.sampled_from(["max", "min"]))
def test_patience_is_exhausted_when_the_scores_since_the_best_reach_it(scores, patience, delta, mode):
    counter = Patience(patience, delta, mode)
    best_at = -1
    for i, score in enumerate(scores):
        counter.add(i, float(score))
        gain = None if best_at < 0 else (score - scores[best_at]) * (1 if mode == "max" else -1)
        if gain is None or gain > delta:
            best_at = i
        assert counter.failures == i - best_at
        assert counter.exhausted == (i - best_at >= patience)
        assert counter.best_step == best_at


def test_a_score_that_is_not_a_number_counts_as_a_failure():
    counter = Patience(2)
    for step, score in enumerate([float("nan"), float("nan")]):
        counter.add(step, score)
    assert counter.exhausted and counter.best_score is None


def test_training_ends_after_patience_validations_without_improvement(train, put_scores):
    scores = {2: 1.0, 4: 2.0, 6: 2.0, 8: 1.5, 10: 3.0}
    trainer, _ = train([put_scores(scores), EarlyStopping(patience=2)], steps=20)
    assert trainer.loop.global_step == 8


def test_lower_is_better_in_mode_min(train, put_scores):
    scores = {1: 3.0, 2: 2.0, 3: 2.5, 4: 1.0}
    trainer, _ = train([put_scores(scores), EarlyStopping(patience=1, mode="min")], steps=20)
    assert trainer.loop.global_step == 3


def test_early_stopping_remembers_its_count_and_best_over_a_resume(train, put_scores):
    scores = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.6}
    before, after = EarlyStopping(patience=3), EarlyStopping(patience=3)
    train([put_scores(scores), before], steps=5)
    after.restore_state(before.state())
    trainer, _ = train([put_scores(scores), after], steps=20, start=5)
    assert trainer.loop.global_step == 8


def test_patience_with_another_metric_counts_for_nothing_after_a_resume(train, put_scores):
    before, after = EarlyStopping(patience=2), EarlyStopping("validation_loss", patience=2, mode="min")
    train([put_scores({1: 50.0, 2: 1.0}), before], steps=2)
    after.restore_state(before.state())
    trainer, _ = train([put_scores({3: 60.0, 4: 70.0, 5: 70.0}, "validation_loss"), after], steps=20, start=2)
    assert trainer.loop.global_step == 5


def test_patience_with_other_sentences_counts_for_nothing_after_a_resume(train, put_scores):
    before, after = EarlyStopping(patience=2), EarlyStopping(patience=2)
    train([put_scores({1: 50.0, 2: 1.0}), before], steps=2)
    after.forgets_scores = True
    after.restore_state(before.state())
    trainer, _ = train([put_scores({3: 30.0, 4: 31.0, 5: 31.0, 6: 30.0}), after], steps=20, start=2)
    assert trainer.loop.global_step == 6


def test_a_run_that_stopped_early_stops_at_once_when_started_again(train, put_scores):
    before, after, longer = (EarlyStopping(patience=p) for p in (1, 1, 2))
    train([put_scores({1: 2.0, 2: 1.0}), before], steps=5)
    after.restore_state(before.state())
    longer.restore_state(before.state())
    assert train([after], steps=5, start=2)[0].loop.global_step == 2
    assert train([longer], steps=5, start=2)[0].loop.global_step == 7


def test_training_ends_at_the_step_limit_counted_from_the_first_step_of_all(train):
    assert train([StopAtStep(7)], steps=100)[0].loop.global_step == 7
    assert train([StopAtStep(7)], steps=100, start=5)[0].loop.global_step == 7
    assert train([StopAtStep(7)], steps=100, start=7)[0].loop.global_step == 7


class Clock:
    """A clock that advances only on request."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def advance(self, _=None):
        self.now += 20.0


def test_minutes_of_training_are_counted_over_resumes(train, do):
    clock = Clock()
    first = StopAfterMinutes(2.0, clock)
    assert train([do(clock.advance), first], steps=3)[0].loop.global_step == 3  # one minute gone
    clock.now += 10**6  # the time between two runs does not count
    second = StopAfterMinutes(2.0, clock)
    second.restore_state(first.state())
    assert train([do(clock.advance), second], steps=100, start=3)[0].loop.global_step == 6
    third = StopAfterMinutes(2.0, clock)
    third.restore_state(second.state())
    assert train([do(clock.advance), third], steps=100, start=6)[0].loop.global_step == 6


@pytest.mark.parametrize(("process", "last_step"), [(0, 6), (1, 9)])
def test_the_clock_of_the_chief_ends_training_because_its_time_is_saved(train, do, process, last_step):
    clock = Clock()
    with in_world(World(process, 2)):
        trainer, _ = train([do(clock.advance), StopAfterMinutes(2.0, clock)], steps=9)
    assert trainer.loop.global_step == last_step


@pytest.mark.parametrize("make", [
    lambda: StopAtStep(0), lambda: StopAfterMinutes(0), lambda: EarlyStopping(patience=0),
    lambda: EarlyStopping(mode="best"), lambda: EarlyStopping(min_delta=-1)])
def test_limits_that_cannot_work_are_refused(make):
    with pytest.raises(SettingsError):
        make()
