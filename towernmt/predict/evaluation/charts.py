"""Bars beside each other as inline SVG, coloured by the style sheet of the page that they stand in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

WIDTH, HEIGHT = 460, 190
LEFT, BOTTOM, TOP = 34, 34, 8
COLORS = 8
"""Classes `c0`, `c1`, ... of the style sheet; further systems begin again."""


def bar_chart(title: str, unit: str, groups: Sequence[str], notes: Sequence[str], names: Sequence[str],
              values: Sequence[Sequence[float]]) -> str:
    """One group of bars for each range, one bar for each system.

    Args:
        title: what a screen reader says of it.
        unit: what the groups are ranges of, below them.
        groups: the ranges.
        notes: how much is in each range; shown with a bar's value, when the pointer rests on it.
        names: the systems.
        values: of each system, of each range, at least 0.
    """
    top = _round_up(max((max(row) for row in values), default=0))
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
             *_grid(top), *_bars(groups, notes, names, values, top),
             f'<text class="unit" x="{LEFT + (WIDTH - LEFT) / 2:g}" y="{HEIGHT - 4}">{escape(unit)}</text>', "</svg>"]
    return "".join(parts)


def _round_up(value: float) -> float:
    """The next end of an axis that parts in four round numbers."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(step * magnitude for step in (1, 2, 4, 6, 8, 10) if step * magnitude >= value)


def _height(value: float, top: float) -> float:
    return (HEIGHT - TOP - BOTTOM) * min(value / top, 1.0)


def _grid(top: float) -> Iterator[str]:
    for i in range(5):
        y = HEIGHT - BOTTOM - _height(top * i / 4, top)
        yield (f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
               f'<text class="tick" x="{LEFT - 5}" y="{y + 3.5:.1f}">{top * i / 4:g}</text>')


def _bars(groups: Sequence[str], notes: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float]],
          top: float) -> Iterator[str]:
    room = (WIDTH - LEFT) / max(len(groups), 1)
    width = min(0.8 * room / len(names), 26)
    for g, (group, note) in enumerate(zip(groups, notes, strict=True)):
        middle = LEFT + (g + 0.5) * room
        for i, (name, row) in enumerate(zip(names, values, strict=True)):
            height = _height(row[g], top)
            x = middle + (i - len(names) / 2) * width
            yield (f'<rect class="c{i % COLORS}" x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
                   f'width="{0.92 * width:.1f}" height="{height:.1f}">'
                   f'<title>{escape(f"{name}: {row[g]:.2f} ({group}, {note})")}</title></rect>')
        yield f'<text class="group" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 13}">{escape(group)}</text>'
