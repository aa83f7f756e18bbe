"""How runs are told apart: by colour and by the kind of line, so that neither is needed alone.

The colours are those of the pages of `towernmt evaluate`, most of them of Okabe and Ito (2008). There are 8 of them and
5 kinds of lines, so that 40 runs differ, and neighbours in both.
"""

from __future__ import annotations

from typing import NamedTuple

COLORS = ("#0072b2", "#d55e00", "#009e73", "#8a5a2b", "#3a9ac9", "#6b7785", "#b65a94", "#b58900")
"""In this order, those of the first 16 runs that look alike to some people have different kinds of lines."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.6, 1.2, 1.6), (9, 2))
"""Lengths of strokes and gaps, in widths of the line; the first is unbroken."""
MOST = len(COLORS) * len(DASHES)


class Style(NamedTuple):
    """Of a run's lines.

    Attributes:
        color: an index into `COLORS`.
        dash: an index into `DASHES`.
    """

    color: int
    dash: int


def style_of(number: int) -> Style:
    """The style of run `number`, from 0; after 40 they begin again."""
    return Style(number % len(COLORS), number % len(DASHES))
