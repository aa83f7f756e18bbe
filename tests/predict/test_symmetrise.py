"""Symmetrisation and the alignment error rate, compared with results by hand and with a literal implementation."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.symmetrise import METHODS, ErrorRate, parse_gold, symmetrised

FORWARD = [(0, 0), (1, 1), (2, 1), (4, 3), (5, 5)]
BACKWARD = [(0, 0), (1, 1), (1, 2), (4, 4), (3, 5)]


@pytest.mark.parametrize("method, expected", [
    ("intersection", [(0, 0), (1, 1)]),
    ("union", [(0, 0), (1, 1), (1, 2), (2, 1), (3, 5), (4, 3), (4, 4), (5, 5)]),
    # (1, 2) and (2, 1) are neighbours of (1, 1), and each has a word without a link.
    ("grow-diag", [(0, 0), (1, 1), (1, 2), (2, 1)]),
    # Both words of (4, 3) and (5, 5) are free; then 4 and 5 are taken, but target 4 and source 3 are not.
    ("grow-diag-final", [(0, 0), (1, 1), (1, 2), (2, 1), (3, 5), (4, 3), (4, 4), (5, 5)]),
    ("grow-diag-final-and", [(0, 0), (1, 1), (1, 2), (2, 1), (4, 3), (5, 5)]),
])
def test_each_method_joins_two_directions_as_by_hand(method: str, expected: list[tuple[int, int]]) -> None:
    assert symmetrised(FORWARD, BACKWARD, method) == expected


def test_a_link_grows_from_links_that_grew() -> None:
    chain = [(1, 1), (2, 2), (3, 3)]
    assert symmetrised([(0, 0), *chain], [(0, 0)], "grow-diag") == [(0, 0), *chain]
    assert symmetrised([(0, 0), (2, 2)], [(0, 0)], "grow-diag") == [(0, 0)]


def test_methods_lie_between_the_intersection_and_the_union_and_agree_on_equal_directions() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        one, other = ({tuple(link) for link in random.integers(0, 7, [random.integers(0, 9), 2]).tolist()}
                      for _ in range(2))
        found = {method: set(symmetrised(one, other, method)) for method in METHODS}
        assert found["intersection"] <= found["grow-diag"] <= found["grow-diag-final-and"] <= found["union"]
        assert found["grow-diag"] <= found["grow-diag-final"] <= found["union"]
        assert all(set(symmetrised(one, one, method)) == one for method in METHODS)


def test_an_unknown_method_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(SettingsError, match="symmetrise=both: choose one of intersection, union"):
        symmetrised([], [], "both")


def test_the_error_rate_is_that_of_och_and_ney_by_hand() -> None:
    rate = ErrorRate()
    gold = parse_gold("0-0 1-1 2?2 3p2", "gold line 1")
    assert gold.sure == {(0, 0), (1, 1)} and gold.possible == {(0, 0), (1, 1), (2, 2), (3, 2)}
    rate.add([(0, 0), (2, 2), (5, 5)], gold)            # |A| 3, |A & S| 1, |A & P| 2, |S| 2
    assert rate.precision == pytest.approx(2 / 3) and rate.recall == 0.5
    assert rate.error_rate == pytest.approx(1 - (1 + 2) / (3 + 2))
    rate.add([(0, 0)], parse_gold("1-1", "gold line 2", first=1))
    assert rate.error_rate == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert str(rate) == "AER = 28.57  precision = 75.00  recall = 66.67  (2 pairs, 4 links)"


def test_nothing_against_nothing_is_no_error() -> None:
    rate = ErrorRate()
    rate.add([], parse_gold("", "gold line 1"))
    assert (rate.error_rate, rate.precision, rate.recall) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("line, first, shown", [("0-0 1:2", 0, "1:2"), ("0-1", 1, "0-1"), ("-1-2", 0, "-1-2"),
                                                (f"{'9' * 5000}-1", 0, "9" * 40)])
def test_what_is_no_link_is_refused_with_its_place(line: str, first: int, shown: str) -> None:
    with pytest.raises(DataError, match=f"gold line 7: '{shown}' is not a link: .* from {first}, as `3-4`"):
        parse_gold(line, "gold line 7", first)
