"""Schedules in a real trainer: the variable has the rate of the update when the update is made."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.callbacks import Callback

import towernmt.callbacks as callbacks
from towernmt.callbacks import ScheduleSettings, make_schedule
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import SCHEDULES, budget, constant, inverse_square_root, linear, piecewise
from towernmt.callbacks.stopping import StopAfterMinutes
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf1


class RatesUsed(Callback):
    """Records the learning rates that the updates read."""

    def __init__(self):
        self.rates = []

    def _setup_graph(self):
        self._rate = next(v for v in tf1.global_variables() if v.name == "learning_rate:0").value()

    def _before_run(self, _):
        return [self._rate]

    def _after_run(self, _, values):
        self.rates.append(float(values.results[0]))


def test_each_update_reads_the_rate_of_its_step(train):
    used = RatesUsed()
    train([LearningRateSchedule(inverse_square_root(0.5, warmup_steps=3)), used], steps=6)
    assert used.rates == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.5 * (3 / 4) ** 0.5, 0.5 * (3 / 5) ** 0.5,
                                        0.5 * 0.5 ** 0.5])


def test_a_resumed_run_starts_with_the_rate_of_the_next_update(train):
    used = RatesUsed()
    train([LearningRateSchedule(linear(1.0, decay_steps=10)), used], steps=3, start=5)
    assert used.rates == pytest.approx([0.4, 0.3, 0.2])


def test_the_sum_of_the_updates_is_the_sum_of_the_rates(train):
    weights = []

    class Weight(Callback):
        def _setup_graph(self):
            self._weight = tf1.trainable_variables()[0].value()

        def _trigger_step(self):
            weights.append(float(self.trainer.sess.run(self._weight)))

    train([Weight(), LearningRateSchedule(piecewise([2, 3], [0.5, 0.25, 0.125]))], steps=5)
    assert weights == [-0.5, -1.0, -1.25, -1.375, -1.5]


def test_an_unchanged_rate_is_not_assigned_again(train):
    assigned = []
    schedule = LearningRateSchedule(constant(0.25))

    class Count(Callback):
        def _before_train(self):
            session = self.trainer.sess
            run = session.run

            def counting(fetches, *args, **kwargs):
                if fetches is schedule._assign:
                    assigned.append(fetches)
                return run(fetches, *args, **kwargs)

            session.run = counting

    train([Count(), schedule], steps=5)
    assert len(assigned) <= 2  # before the training and before its first epoch


def test_an_optimizer_without_the_variable_is_refused_in_one_sentence(train):
    with pytest.raises(SettingsError, match="variable 'learning_rate:0', which is not in the graph"):
        train([LearningRateSchedule(constant(0.1))], steps=1,
              optimizer=lambda: tf1.train.GradientDescentOptimizer(0.1))


def test_plateau_halves_the_rate_after_patience_validations_without_improvement(train, put_scores):
    used = RatesUsed()
    plateau = callbacks.ReduceOnPlateau(1.0, patience=2, factor=0.5, minimum=0.3)
    scores = {1: 10.0, 2: 9.0, 3: 10.0, 4: 11.0, 5: 11.0, 6: 11.0, 7: 1.0, 8: 1.0}
    train([put_scores(scores), plateau, used], steps=9)
    # steps 2 and 3 do not improve on 10 -> 0.5 from step 4; 5, 6 not on 11 -> the minimum 0.3; 7, 8 neither
    assert used.rates == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3])


def test_plateau_remembers_its_reductions_over_a_resume(train, put_scores):
    scores = {1: 3.0, 2: 2.0, 3: 1.0, 4: 2.5, 5: 2.0, 6: 4.0}
    uninterrupted = RatesUsed()
    train([put_scores(scores), callbacks.ReduceOnPlateau(1.0, patience=2), uninterrupted], steps=7)
    first, second = RatesUsed(), RatesUsed()
    before, after = (callbacks.ReduceOnPlateau(1.0, patience=2) for _ in range(2))
    train([put_scores(scores), before, first], steps=4)
    after.restore_state(before.state())
    train([put_scores(scores), after, second], steps=3, start=4)
    assert first.rates + second.rates == uninterrupted.rates
    assert len(set(uninterrupted.rates)) > 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_chosen_by_name(name):
    settings = ScheduleSettings(name, warmup_steps=10, decay_steps=100, boundaries=[50], values=[0.1, 0.01])
    rates = [make_schedule(settings, 0.1, hidden_size=64, steps=10 ** 9).value(step) for step in range(1, 200)]
    assert np.isfinite(rates).all() and min(rates) >= 0
    assert max(rates) == pytest.approx(0.1 * 640 ** -0.5 if name == "noam" else 0.1)


def test_an_unknown_schedule_is_refused_with_the_names_that_exist():
    with pytest.raises(SettingsError, match="inverse_square_root"):
        make_schedule(ScheduleSettings(name="invsqrt"), 0.1, 64)


def test_the_budget_schedule_falls_in_a_line_to_the_end_value_at_the_last_update():
    schedule = LearningRateSchedule(budget(0.1, steps=101, warmup_steps=10, end_learning_rate=0.02))
    rates = [schedule.value(step) for step in range(1, 103)]
    assert rates[4] == pytest.approx(0.5 * (0.1 - 0.08 * 4 / 101))
    assert np.diff(rates[10:101]) == pytest.approx(-0.08 / 101)
    assert rates[101] == pytest.approx(0.02)


def test_the_budget_schedule_follows_the_clock_if_the_time_limit_is_nearer():
    seconds = [0.0]
    limit = StopAfterMinutes(2, clock=lambda: seconds[0])
    limit._before_train()
    schedule = LearningRateSchedule(budget(0.1, steps=1000, elapsed=limit.share_used))
    seconds[0] = 30.0
    assert schedule.value(1) == pytest.approx(0.075)
    assert schedule.value(501) == pytest.approx(0.05)
    seconds[0] = 500.0
    assert schedule.value(502) == 0.0


def test_the_budget_schedule_needs_a_limit():
    with pytest.raises(SettingsError, match="train.steps, train.minutes, or"):
        make_schedule(ScheduleSettings(name="budget"), 0.1, 64)
