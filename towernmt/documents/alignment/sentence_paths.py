"""The best path through two sentence sequences: dynamic programming over a band, with affine costs of gaps.

A path is a sequence of beads (Gale & Church 1993). A bead joins one or two source sentences and one or two target
sentences. Sentences between beads are gaps: a sentence that was not translated, or an added one. The first sentence of
a gap costs more than the next ones (Gotoh 1982), so that a missing chapter costs little more than a missing sentence.

Positions are boundaries between sentences: a cell (i, j) of the band stands for the alignment of the first i source
sentences with the first j target sentences. Each row of the band is computed at once, also the gaps inside a row: the
best begin of a gap that ends at column j is a running maximum over the columns before j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.preparation.shards import offsets_of_lengths

SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2))
"""Numbers of source and target sentences of the beads, in the order of the gains."""
GAP_GAIN = float(np.log(0.01))
"""Gain of the first sentence of a gap, in addition to `GAP_STEP`."""
GAP_STEP = float(np.log(0.85))
"""Gain of each sentence of a gap."""
_VERTICAL, _FROM_ROW_GAP, _GAP_CONTINUES, _NEW_MAXIMUM = len(SHAPES), 8, 16, 32


class Bead(NamedTuple):
    """Sentences that are translations of each other, or a gap: `first` and `after` are indices of sentences.

    Attributes:
        source_first, source_after: range of source sentences.
        target_first, target_after: range of target sentences.
    """

    source_first: int
    source_after: int
    target_first: int
    target_after: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of source and of target sentences."""
        return self.source_after - self.source_first, self.target_after - self.target_first

    @property
    def is_gap(self) -> bool:
        """Whether one side has no sentence."""
        return 0 in self.shape


class Band(NamedTuple):
    """The cells that are searched: columns `first[i]` to `last[i]` of row i, both ends included.

    Attributes:
        first, last: int64 `[source sentences + 1]`, not decreasing; `first[i + 1] <= last[i]`.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def around_diagonal(cls, sources: int, targets: int, half_width: int) -> Band:
        """Return the cells whose column differs from that of the straight line by at most `half_width`."""
        line = np.round(np.arange(sources + 1) * (targets / max(sources, 1))).astype(np.int64)
        line[-1] = targets
        slope = targets // max(sources, 1) + 1
        return cls(np.maximum(line - half_width - slope, 0), np.minimum(line + half_width + slope, targets))

    @classmethod
    def around_path(cls, path: Sequence[Bead], sources: int, targets: int, half_width: int) -> Band:
        """Return the cells whose row and column differ from a cell of a path by at most about `half_width`."""
        first, last = np.full(sources + 1, targets), np.zeros(sources + 1, np.int64)
        first[0], last[-1] = 0, targets
        for bead in path:
            for row in range(bead.source_first, bead.source_after + 1):
                first[row] = min(first[row], bead.target_first)
                last[row] = max(last[row], bead.target_after)
        rows = np.arange(sources + 1)
        return cls(np.maximum(first[np.maximum(rows - half_width, 0)] - half_width // 4, 0),
                   np.minimum(last[np.minimum(rows + half_width, sources)] + half_width // 4, targets))

    @property
    def widths(self) -> NDArray[np.int64]:
        """Number of cells of each row."""
        return self.last - self.first + 1

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64 `[rows + 1]`, index of the first cell of each row, if the rows are stored one after the other."""
        return offsets_of_lengths(self.widths)


GainsOfRectangle = Callable[[range, range], NDArray[np.floating]]
"""Return the gains `[len(SHAPES), rows, columns]` of the beads that end at these source and target boundaries."""
_CELLS_AT_ONCE, _ROWS_AT_ONCE = 1 << 16, 64


def best_path(band: Band, gains_of_rectangle: GainsOfRectangle, report: Callable[[int], None] = lambda rows: None
              ) -> list[Bead]:
    """Return the beads and gaps with the highest sum of gains, in order; each gap is one sentence.

    It needs one byte of memory for each cell of the band.

    Args:
        band: the cells to search. It contains the first and the last cell.
        gains_of_rectangle: returns the gains of beads. Those of beads that begin outside the texts have no meaning.
        report: called with the number of source sentences that the search has passed since the previous call.
    """
    starts, rows = band.starts.tolist(), _Rows(int(band.last[-1]))
    moves = np.zeros(starts[-1], np.uint8)
    rows.begin(int(band.first[0]), moves[:starts[1]])
    for chunk, columns in _chunks(band):
        gains = gains_of_rectangle(chunk, columns)
        for i in chunk:
            first, after = int(band.first[i]), int(band.last[i]) + 1
            rows.add(first, after, gains[:, i - chunk.start, first - columns.start:after - columns.start],
                     moves[starts[i]:starts[i + 1]])
        report(len(chunk))
    return _traced_path(moves, band)


def _chunks(band: Band) -> Iterator[tuple[range, range]]:
    """Yield ranges of rows from 1 on, each with the range of their columns."""
    first, after = band.first.tolist(), (band.last + 1).tolist()
    begin = 1
    while begin < len(first):
        end = begin + 1
        while end < len(first) and end - begin < _ROWS_AT_ONCE and (
                (end + 1 - begin) * (after[end] - first[begin]) <= _CELLS_AT_ONCE):
            end += 1
        yield range(begin, end), range(first[begin], after[end - 1])
        begin = end


class _Rows:
    """The gains of the last rows, for each column of the texts; minus infinity outside the band.

    Args:
        targets: number of target sentences.
    """

    def __init__(self, targets: int) -> None:
        # Two more columns before the first one, for beads that would begin before the text.
        self._best = [np.full(targets + 3, -np.inf) for _ in range(3)]      # of this row, and of the two before it
        self._gap = np.full(targets + 3, -np.inf)       # of paths that end with an unaligned source sentence
        self._firsts = [0, 0, 0]
        self._steps = np.arange(targets + 1) * GAP_STEP

    def begin(self, first: int, moves: NDArray[np.uint8]) -> None:
        """Compute row 0, and write its moves."""
        best = self._best[0][2 + first:2 + first + len(moves)]
        best[0] = 0.0
        self._with_gaps_in_row(best, moves)

    def add(self, first: int, after: int, gains: NDArray[np.floating], moves: NDArray[np.uint8]) -> None:
        """Compute the next row, columns `first` to before `after`, and write its moves."""
        self._best.insert(0, self._best.pop())
        self._best[0][2 + self._firsts.pop():2 + first] = -np.inf     # this array contained the row three rows before
        self._firsts.insert(0, first)
        best = self._best[0][2 + first:2 + after]
        np.add(self._best[1][1 + first:1 + after], gains[0], out=best)
        for number, (rows, columns) in enumerate(SHAPES[1:], start=1):
            bead_gain = self._best[rows][2 + first - columns:2 + after - columns] + gains[number]
            np.copyto(moves, np.uint8(number), where=bead_gain > best)
            np.maximum(best, bead_gain, out=best)
        gap, new_gap = self._gap[2 + first:2 + after], self._best[1][2 + first:2 + after] + GAP_GAIN
        continues = gap > new_gap
        np.maximum(gap, new_gap, out=gap)
        gap += GAP_STEP
        np.copyto(moves, np.uint8(_VERTICAL), where=gap > best)
        np.maximum(best, gap, out=best)
        moves += continues * np.uint8(_GAP_CONTINUES)
        self._with_gaps_in_row(best, moves)

    def _with_gaps_in_row(self, best: NDArray[np.float64], moves: NDArray[np.uint8]) -> None:
        """Add the gaps of target sentences that end in a row, and their moves."""
        steps = self._steps[:len(best)]
        maxima = np.maximum.accumulate(best - steps)
        moves[0] += _NEW_MAXIMUM
        moves[1:] += (maxima[1:] > maxima[:-1]) * np.uint8(_NEW_MAXIMUM)
        in_row = maxima[:-1] + steps[1:]
        in_row += GAP_GAIN
        moves[1:] += (in_row > best[1:]) * np.uint8(_FROM_ROW_GAP)
        np.maximum(best[1:], in_row, out=best[1:])


def _traced_path(moves: NDArray[np.uint8], band: Band) -> list[Bead]:
    """Return the path to the last cell."""
    first, starts = band.first.tolist(), band.starts.tolist()
    i, j = len(first) - 1, int(band.last[-1])
    path: list[Bead] = []
    in_gap = False
    while i or j:
        move = int(moves[starts[i] + j - first[i]])
        if move & _FROM_ROW_GAP and not in_gap:
            while True:
                path.append(Bead(i, i, j - 1, j))
                j -= 1
                move = int(moves[starts[i] + j - first[i]])
                if move & _NEW_MAXIMUM:
                    break
            if not (i or j):
                break
        if in_gap or move % _FROM_ROW_GAP == _VERTICAL:
            in_gap = bool(move & _GAP_CONTINUES)
            path.append(Bead(i - 1, i, j, j))
            i -= 1
        else:
            rows, columns = SHAPES[move % _FROM_ROW_GAP]
            path.append(Bead(i - rows, i, j - columns, j))
            i, j = i - rows, j - columns
    return path[::-1]
