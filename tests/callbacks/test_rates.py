"""The schedules as functions, against the papers' formulas and numbers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.callbacks import schedules
from towernmt.core.errors import SettingsError

STEPS = st.integers(1, 10**6)
RATES = st.floats(1e-6, 10.0)
WARMUPS = st.integers(0, 10**5)


def test_noam_gives_the_peak_of_the_base_transformer():
    # Vaswani et al. 2017: d_model 512, 4000 warm-up steps -> 512**-0.5 * 4000**-0.5 = 6.98771e-4 at step 4000
    assert schedules.noam(512, 4000)(4000) == pytest.approx(6.987712e-4, rel=1e-6)
    assert schedules.noam(512, 4000)(1) == pytest.approx(1.746928e-7, rel=1e-6)
    assert schedules.noam(512, 4000)(100000) == pytest.approx(1.397542e-4, rel=1e-6)


@given(step=STEPS, warmup=st.integers(1, 10**5), hidden=st.integers(1, 4096))
def test_noam_is_the_inverse_square_root_with_its_peak_written_out(step, warmup, hidden):
    peak = 1 / math.sqrt(hidden * warmup)
    expected = schedules.inverse_square_root(peak, warmup)(step)
    assert schedules.noam(hidden, warmup)(step) == pytest.approx(expected, rel=1e-9)


def test_inverse_square_root_rises_to_its_peak_and_halves_at_four_times_the_warmup():
    rate = schedules.inverse_square_root(5e-4, 4000)
    assert [rate(step) for step in (1, 2000, 4000, 16000)] == pytest.approx([1.25e-7, 2.5e-4, 5e-4, 2.5e-4])
    without = schedules.inverse_square_root(0.1, 0)
    assert [without(step) for step in (1, 100)] == pytest.approx([0.1, 0.01])


def test_linear_follows_the_line_through_its_corners():
    corners_x, corners_y = [0, 100, 1100, 2000], [0.0, 1.0, 0.2, 0.2]
    rate = schedules.linear(1.0, 1100, 100, 0.2)
    for step in range(1, 2000, 7):
        assert rate(step) == pytest.approx(np.interp(step, corners_x, corners_y), abs=1e-12)


def test_cosine_has_the_values_of_half_a_cosine():
    cosine = schedules.cosine(2.0, 110, 10, 1.0)
    rate = [cosine(step) for step in (5, 10, 35, 60, 85, 110, 500)]
    eighth = math.sqrt(0.5) / 2  # cos(pi/4) / 2
    assert rate == pytest.approx([1.0, 2.0, 1.5 + eighth, 1.5, 1.5 - eighth, 1.0, 1.0])


def test_piecewise_changes_after_each_boundary():
    rate = schedules.piecewise([10, 20], [3.0, 2.0, 1.0])
    assert [rate(step) for step in (1, 10, 11, 20, 21, 1000)] == [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
    assert schedules.piecewise([10], [3.0, 2.0], warmup_steps=10)(5) == pytest.approx(1.5)


def test_exponential_multiplies_once_in_each_decay_period():
    rate = schedules.exponential(1.0, 100, 0.5)
    assert [rate(s) for s in (100, 200, 300)] == pytest.approx([0.5, 0.25, 0.125])
    assert rate(50) == pytest.approx(math.sqrt(0.5))
    in_jumps = schedules.exponential(1.0, 100, 0.5, 10, True)
    assert [in_jumps(s) for s in (5, 10, 109, 110, 209, 210)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.5, 0.5, 0.25])


def test_the_constant_schedule_is_constant_after_the_warmup():
    rate = schedules.constant(0.8, 4)
    assert [rate(s) for s in (1, 2, 3, 4, 5, 10**6)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


@given(step=STEPS, rate=RATES, warmup=WARMUPS, length=st.integers(1, 10**5))
def test_every_schedule_rises_in_the_warmup_and_never_after_it(step, rate, warmup, length):
    functions = [
        schedules.constant(rate, warmup), schedules.inverse_square_root(rate, warmup),
        schedules.noam(512, warmup, rate),
        schedules.linear(rate, warmup + length, warmup), schedules.cosine(rate, warmup + length, warmup, rate / 10),
        schedules.exponential(rate, length, 0.5, warmup),
    ]
    for function in functions:
        here, following = function(step), function(step + 1)
        assert here >= 0 and math.isfinite(here)
        if step < warmup:
            assert following >= here
        else:
            assert following <= here * (1 + 1e-12)


@given(rate=RATES, warmup=st.integers(1, 10**5), length=st.integers(1, 10**5))
def test_the_peak_is_reached_at_the_end_of_the_warmup(rate, warmup, length):
    assert schedules.inverse_square_root(rate, warmup)(warmup) == pytest.approx(rate)
    assert schedules.linear(rate, warmup + length, warmup)(warmup) == pytest.approx(rate)
    assert schedules.cosine(rate, warmup + length, warmup)(warmup) == pytest.approx(rate)
    assert schedules.exponential(rate, length, 0.9, warmup)(warmup) == pytest.approx(rate)


def test_invalid_settings_are_refused_with_their_fix():
    with pytest.raises(SettingsError, match="one value more than boundaries"):
        schedules.piecewise([1, 2], [0.1, 0.2])
    with pytest.raises(SettingsError, match="in ascending order"):
        schedules.piecewise([2, 2], [0.1, 0.2, 0.3])
    with pytest.raises(SettingsError, match="set decay_steps above warmup_steps"):
        schedules.cosine(0.1, 100, 100)


def test_the_settings_can_be_read_without_starting_tensorflow():
    code = "import sys, towernmt.callbacks.schedules; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
