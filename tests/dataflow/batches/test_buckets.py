from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.block_plan import define_buckets


def test_target_bounds_go_by_the_width_and_source_bounds_by_the_ratio() -> None:
    buckets = define_buckets(width=10, max_length=35, length_ratio=1.25)
    assert buckets.target_bounds.tolist() == [10, 20, 30, 35]
    assert buckets.source_bounds.tolist() == [13, 25, 38, 44]


def test_a_ratio_below_one_makes_the_source_bounds_smaller_but_never_zero() -> None:
    buckets = define_buckets(width=1, max_length=3, length_ratio=0.1)
    assert buckets.source_bounds.tolist() == [1, 1, 1]


def test_width_zero_is_one_bucket() -> None:
    buckets = define_buckets(width=0, max_length=50, length_ratio=1.0)
    assert len(buckets) == 1
    assert buckets.assign(np.array([1, 50, 900]), np.array([70, 1, 900])).tolist() == [0, 0, 0]


def test_a_pair_goes_to_the_smallest_bucket_that_fits_both_sides() -> None:
    buckets = define_buckets(width=10, max_length=30, length_ratio=2.0)  # (20, 10), (40, 20), (60, 30)
    source = np.array([20, 21, 1, 1, 60, 61, 5])
    target = np.array([10, 1, 10, 11, 30, 1, 31])
    assert buckets.assign(source, target).tolist() == [0, 1, 0, 1, 2, 2, 2]


@given(st.integers(1, 20), st.integers(1, 100), st.floats(0.1, 10),
       st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=30))
def test_the_bucket_is_that_of_a_search_by_hand(width: int, max_length: int, ratio: float,
                                                pairs: list[tuple[int, int]]) -> None:
    buckets = define_buckets(width, max_length, ratio)
    bounds = list(zip(buckets.source_bounds.tolist(), buckets.target_bounds.tolist(), strict=True))
    assert bounds[-1][1] == max_length
    assert all(0 <= s - t * ratio < 1 or math.isclose(s, max(1, t * ratio), abs_tol=1e-6) for s, t in bounds)
    lengths = np.array(pairs)
    for (source, target), bucket in zip(pairs, buckets.assign(lengths[:, 0], lengths[:, 1]), strict=True):
        fitting = [i for i, (s, t) in enumerate(bounds) if source <= s and target <= t]
        assert bucket == (fitting[0] if fitting else len(bounds) - 1)


def test_settings_that_cannot_work_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="bucket_width=-1"):
        define_buckets(-1, 10, 1.0)
    with pytest.raises(SettingsError, match="max_length=0"):
        define_buckets(5, 0, 1.0)
    for ratio in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(DataError, match="length ratio"):
            define_buckets(5, 10, ratio)
