"""The search for the best path, next to a search that tries all paths."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from towernmt.documents.alignment.sentence_paths import GAP_GAIN, GAP_STEP, SHAPES, Band, Bead, best_path

WHOLE = 100


def gains_of(gains: NDArray[np.float64]) -> object:
    return lambda rows, columns: gains[:, rows.start:rows.stop, columns.start:columns.stop]


def path_gain(path: list[Bead], gains: NDArray[np.float64]) -> float:
    """The sum of a path, with each run of gaps on one side counted as one gap."""
    total, before = 0.0, None
    for bead in path:
        if bead.is_gap:
            total += GAP_STEP + (GAP_GAIN if bead.shape != before else 0.0)
        else:
            total += gains[SHAPES.index(bead.shape), bead.source_after, bead.target_after]
        before = bead.shape
    return total


def best_of_all(sources: int, targets: int, gains: NDArray[np.float64], band: Band) -> float:
    """The best sum, by recursion over all beads and gaps; the last argument is the gap that comes before."""
    @cache
    def best(i: int, j: int, gap: tuple[int, int] | None) -> float:
        if not band.first[i] <= j <= band.last[i]:
            return -np.inf
        if (i, j) == (sources, targets):
            return 0.0
        found = [-np.inf]
        for number, (rows, columns) in enumerate(SHAPES):
            if i + rows <= sources and j + columns <= targets:
                found.append(float(gains[number, i + rows, j + columns]) + best(i + rows, j + columns, None))
        for step in ((1, 0), (0, 1)):
            if i + step[0] <= sources and j + step[1] <= targets:
                cost = GAP_STEP + (GAP_GAIN if gap != step else 0.0)
                found.append(cost + best(i + step[0], j + step[1], step))
        return max(found)

    return best(0, 0, None)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2 ** 32 - 1), st.sampled_from((1, 3, WHOLE)))
@settings(max_examples=150, deadline=None)
def test_no_path_is_better(sources: int, targets: int, seed: int, half_width: int) -> None:
    gains = np.random.default_rng(seed).normal(-2, 3, (len(SHAPES), sources + 1, targets + 1))
    band = Band.around_diagonal(sources, targets, half_width)
    path = best_path(band, gains_of(gains))     # type: ignore[arg-type]
    assert path_gain(path, gains) == pytest.approx(best_of_all(sources, targets, gains, band))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2 ** 32 - 1))
@settings(max_examples=25, deadline=None)
def test_a_path_covers_each_sentence_once_in_chunks_of_rows(sources: int, targets: int, seed: int) -> None:
    gains = np.random.default_rng(seed).normal(-4, 2, (len(SHAPES), sources + 1, targets + 1))
    band = Band.around_diagonal(sources, targets, 20)
    path = best_path(band, gains_of(gains))     # type: ignore[arg-type]
    i = j = 0
    for bead in path:
        assert (bead.source_first, bead.target_first) == (i, j)
        assert bead.shape in (*SHAPES, (1, 0), (0, 1))
        i, j = bead.source_after, bead.target_after
    assert (i, j) == (sources, targets)
    narrow = Band.around_path(path, sources, targets, 4)
    again = best_path(narrow, gains_of(gains))      # type: ignore[arg-type]
    assert path_gain(again, gains) >= path_gain(path, gains) - 1e-6


def test_a_missing_chapter_is_one_gap() -> None:
    gains = np.full((len(SHAPES), 301, 101), -3.0)
    for row in range(1, 301):
        if row <= 50 or row > 250:
            gains[0, row, row if row <= 50 else row - 200] = 2.0
    path = best_path(Band.around_diagonal(300, 100, 300), gains_of(gains))  # type: ignore[arg-type]
    assert [bead for bead in path if bead.is_gap] == [Bead(row, row + 1, 50, 50) for row in range(50, 250)]
