"""The table below a picture: a line for each run, with a piece of its curve, its figures, and its settings that differ.

It is the legend, too: so each name stands once, and ten runs have room.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from towernmt.curves.differences import Difference, differences
from towernmt.curves.final_figures import final_figures
from towernmt.curves.recorded_run import RecordedRun
from towernmt.curves.styles import COLORS, DASHES, style_of

TEXT_SIZE = 8.5
_ROW, _GAP, _SAMPLE = 0.21, 0.22, 0.5       # inches
_LONGEST = 26               # characters of a cell
_HEAD = 2.5                 # rows that the heading takes
_MOST_BLOCKS = 3
_INK, _QUIET, _RULE = "#1b1f24", "#5d6670", "#d5dbe1"


@dataclass(frozen=True)
class _Column:
    group: str
    head: str
    cells: list[str]

    @property
    def width(self) -> float:
        return max(text_width(text) for text in (self.group, self.head, *self.cells))


class PictureTable:
    """The table, laid out.

    Attributes:
        height: inches that it takes.
    """

    def __init__(self, runs: Sequence[RecordedRun], width: float) -> None:
        """
        Args:
            runs: a row each.
            width: inches that it may take: what does not fit stands in a further table below.
        """
        self._count = len(runs)
        names = _Column("", "run", [_shortened(run.name) for run in runs])
        figures = [_Column("", figure.head, figure.cells) for figure in final_figures(runs)]
        settings = [_setting(one) for one in differences(runs) if one.is_setting]
        self._blocks = [[names]]
        for column in [*figures, *settings]:
            used = sum(other.width + _GAP for other in self._blocks[-1])
            if used + column.width > width - _SAMPLE:
                if len(self._blocks) == _MOST_BLOCKS:
                    break
                self._blocks.append([names])
            self._blocks[-1].append(column)
        self._left_out = len(settings) + len(figures) - sum(len(block) - 1 for block in self._blocks)
        self.height = _ROW * ((self._count + _HEAD) * len(self._blocks) + bool(self._left_out))

    def draw(self, axes: Any) -> None:
        """Write it into axes whose units are inches, downwards from 0."""
        height = _ROW * (self._count + _HEAD)
        for number, block in enumerate(self._blocks):
            self._draw_block(axes, block, number * height)
        if self._left_out:
            axes.text(_SAMPLE, len(self._blocks) * height + 0.4 * _ROW, f"{self._left_out} more settings differ, for "
                      "which there is no room: an .html page, and `towernmt compare`, have all.", size=TEXT_SIZE - 0.5,
                      color=_QUIET, va="center")

    def _draw_block(self, axes: Any, columns: Sequence[_Column], top: float) -> None:
        x = _SAMPLE
        for column in columns:
            axes.text(x, top + 0.6 * _ROW, column.group, size=TEXT_SIZE - 1, color=_QUIET, va="center")
            axes.text(x, top + 1.5 * _ROW, column.head, size=TEXT_SIZE, color=_INK, weight="bold", va="center")
            for row, cell in enumerate(column.cells):
                axes.text(x, top + (row + 2.6) * _ROW, cell, size=TEXT_SIZE, color=_INK, va="center")
            x += column.width + _GAP
        axes.plot([0, x - _GAP], [top + 2.05 * _ROW] * 2, color=_RULE, linewidth=0.8)
        for row in range(self._count):
            style = style_of(row)
            dash = DASHES[style.dash]
            axes.plot([0.02, _SAMPLE - 0.12], [top + (row + 2.6) * _ROW] * 2, color=COLORS[style.color], linewidth=1.9,
                      linestyle=(0, dash) if dash else "-")


def _setting(one: Difference) -> _Column:
    group, _, head = one.key.rpartition(".")
    return _Column(group, head, [_shortened(value) for value in one.values])


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST // 2]}…{text[1 - _LONGEST // 2:]}"


@cache
def text_width(text: str) -> float:
    """Inches that a text in bold takes; a wide sign (Chinese, Japanese, Korean) is as wide as an M, in any font."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    text = "".join("M" if unicodedata.east_asian_width(sign) in "WF" else sign for sign in text)
    font = FontProperties(family="sans-serif", size=TEXT_SIZE, weight="bold")
    return float(TextPath((0, 0), text, prop=font).get_extents().width) / 72 if text.strip() else 0.0
