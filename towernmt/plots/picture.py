"""Draw the curves of runs as PNG or SVG with Matplotlib, with a table below."""

from __future__ import annotations

import io
import math
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError, SettingsError
from towernmt.plots.panels import (
    AXES,
    COLORS,
    DASHES,
    DEFAULT_KINDS,
    Curve,
    Panel,
    end_of,
    odd_window,
    panels,
    running_means,
    style_of,
    usual_window,
)
from towernmt.plots.recorded_runs import Difference, RecordedRun, differences, notes_on
from towernmt.plots.run_comparison import final_figures, score_text, short_number
from towernmt.predict.attention_plot import families_of_picture, without_font_warnings
from towernmt.predict.lines.output_file import output_file

TEXT_SIZE = 8.5
_ROW, _GAP, _SAMPLE = 0.21, 0.22, 0.5       # inches
_LONGEST = 26               # maximum characters of a cell
_HEAD = 2.5                 # height of the heading, in rows
_MOST_BLOCKS = 3
_INK, _QUIET_TEXT, _RULE = "#1b1f24", "#5d6670", "#d5dbe1"


@dataclass(frozen=True)
class _Column:
    group: str
    head: str
    cells: list[str]

    @property
    def width(self) -> float:
        return max(text_width(text) for text in (self.group, self.head, *self.cells))


class PictureTable:
    """The layout of the table.

    Args:
        runs: the runs, one row each.
        width: maximum width in inches; further columns go into another block below.

    Attributes:
        height: height in inches.
    """

    def __init__(self, runs: Sequence[RecordedRun], width: float) -> None:
        self._count = len(runs)
        names = _Column("", "run", [_shortened(run.name) for run in runs])
        figures = [_Column("", figure.head, figure.cells) for figure in final_figures(runs)]
        settings = [_setting(difference) for difference in differences(runs) if difference.is_setting]
        self._blocks = [[names]]
        for column in [*figures, *settings]:
            width_so_far = sum(placed.width + _GAP for placed in self._blocks[-1])
            if width_so_far + column.width > width - _SAMPLE:
                if len(self._blocks) == _MOST_BLOCKS:
                    break
                self._blocks.append([names])
            self._blocks[-1].append(column)
        self._left_out = len(settings) + len(figures) - sum(len(block) - 1 for block in self._blocks)
        self.height = _ROW * ((self._count + _HEAD) * len(self._blocks) + bool(self._left_out))

    def draw(self, axes: Any) -> None:
        """Draw the table into axes in inches, downwards from 0."""
        height = _ROW * (self._count + _HEAD)
        for number, block in enumerate(self._blocks):
            self._draw_block(axes, block, number * height)
        if self._left_out:
            what = "1 more setting differs, but does" if self._left_out == 1 else (
                f"{self._left_out} more settings differ, but do")
            axes.text(_SAMPLE, len(self._blocks) * height + 0.4 * _ROW, f"{what} not fit here: write an .html page, or "
                      "use `towernmt compare`.", size=TEXT_SIZE - 0.5, color=_QUIET_TEXT, va="center")

    def _draw_block(self, axes: Any, columns: Sequence[_Column], top: float) -> None:
        x = _SAMPLE
        for column in columns:
            axes.text(x, top + 0.6 * _ROW, column.group, size=TEXT_SIZE - 1, color=_QUIET_TEXT, va="center")
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


def _setting(difference: Difference) -> _Column:
    group, _, head = difference.key.rpartition(".")
    return _Column(group, head, [_shortened(value) for value in difference.values])


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST // 2]}…{text[1 - _LONGEST // 2:]}"


@cache
def text_width(text: str) -> float:
    """Return the width of bold text in inches; wide characters (Chinese, Japanese, Korean) count as M in any font."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    text = "".join("M" if unicodedata.east_asian_width(character) in "WF" else character for character in text)
    font = FontProperties(family="sans-serif", size=TEXT_SIZE, weight="bold")
    return float(TextPath((0, 0), text, prop=font).get_extents().width) / 72 if text.strip() else 0.0


SUFFIXES = (".png", ".svg")
WIDTH = 11.0            # inches
_PANEL_HEIGHT = 2.5
_LINE_HEIGHT = 0.2             # height of a line of text, in inches
_NOTE_CHARACTERS = 175             # characters in a line of a note
_RUNS_WITHOUT_VALUES = 4               # number of runs from which the best points have no values
_NOTE_COLOR = "#5d6670"
MATPLOTLIB_STYLE = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.titlesize": 10, "axes.titlelocation": "left",
    "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#9aa5b1",
    "axes.grid": True, "grid.color": "#e4e8ec", "grid.linewidth": 0.8, "axes.axisbelow": True, "xtick.color": "#39424c",
    "ytick.color": "#39424c", "svg.fonttype": "none", "svg.hashsalt": "towernmt", "text.parse_math": False,
    "axes.formatter.use_mathtext": False, "lines.dash_capstyle": "butt"}
"""Matplotlib's settings for the pictures."""


@dataclass(frozen=True)
class PictureSettings:
    """Settings of a picture.

    Attributes:
        axis: the horizontal axis: "updates", "tokens" or "minutes".
        kinds: the panels, as `towernmt plot --panels`, such as "loss" and "validation-bleu".
        window: number of logged figures in a running mean, rounded up to an odd number; 1: no mean; 0: suitable for the
            longest run.
        table: add a table of the runs' figures and the settings that differ.
    """

    axis: str = "updates"
    kinds: Sequence[str] = DEFAULT_KINDS
    window: int = 0
    table: bool = True


def draw_curves(runs: Sequence[RecordedRun], path: str | Path, settings: PictureSettings | None = None) -> None:
    """Draw the curves of runs into a file, in the format of its suffix.

    Raises:
        DataError: the runs have not recorded such curves, or the file cannot be written.
        SettingsError: Matplotlib is not installed.
    """
    settings = settings or PictureSettings()
    matplotlib = import_matplotlib()
    drawn_panels = panels(runs, settings.kinds)
    paths = ", ".join(str(run.path) for run in runs)
    if not drawn_panels:
        raise DataError(f"{paths}: nothing is recorded that could be drawn. Wait until training logs its first "
                        "figures.")
    if len(_runs_without(settings.axis, runs)) == sum(bool(run.rows) for run in runs):
        raise DataError(f"{paths}: no {AXES[settings.axis][1]} are recorded: pass --x updates.")
    vector = Path(path).suffix.lower() == ".svg"
    style = dict(MATPLOTLIB_STYLE)
    if not vector:
        style["font.family"] = families_of_picture(_foreign_text(runs, drawn_panels), path)
    with matplotlib.rc_context(style), without_font_warnings():
        figure = _figure(runs, drawn_panels, settings)
        content = io.BytesIO()
        figure.savefig(content, format="svg" if vector else "png", dpi=130,
                       metadata={"Date": None, "Creator": None} if vector else None)
    with output_file(path) as file:
        file.write(content.getvalue())


def _runs_without(axis: str, runs: Sequence[RecordedRun]) -> list[str]:
    """Return the names of the runs that have records, but none of them with a position on an axis."""
    return [run.name for run in runs if run.rows and AXES[axis][0] not in run.scalars]


def _foreign_text(runs: Sequence[RecordedRun], drawn_panels: Sequence[Panel]) -> str:
    """Return the text of a picture that may be in any script: names of runs and validation sets, and settings."""
    return "".join([*(run.name for run in runs), *(panel.title for panel in drawn_panels),
                    *(value for difference in differences(runs) for value in difference.values)])


def import_matplotlib() -> Any:
    """Import and return Matplotlib.

    Raises:
        SettingsError: Matplotlib is not installed.
    """
    try:
        import matplotlib
        import matplotlib.figure  # noqa: F401 - an incomplete installation fails here
    except ImportError as error:
        raise SettingsError("Pictures need Matplotlib: pip install 'towernmt[plot]', or write an .html page, which "
                            "does not need it.") from error
    return matplotlib


def _figure(runs: Sequence[RecordedRun], drawn_panels: Sequence[Panel], settings: PictureSettings) -> Any:
    from matplotlib.figure import Figure

    columns = 1 if len(drawn_panels) == 1 else 3 if len(drawn_panels) > 6 else 2
    rows = math.ceil(len(drawn_panels) / columns)
    window = odd_window(settings.window or usual_window(runs))
    notes = [line for note in [*_on_lines(drawn_panels, window), *_on_axis(settings.axis, runs), *notes_on(runs)]
             for line in textwrap.wrap(note, _NOTE_CHARACTERS)]
    table = PictureTable(runs, WIDTH - 0.5) if settings.table else None
    below = (table.height if table else 0.0) + _LINE_HEIGHT * len(notes) + 0.25
    height = rows * _PANEL_HEIGHT + 0.15 + below
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    grid = figure.add_gridspec(rows, columns, left=0.065, right=0.985, top=1 - 0.35 / height,
                               bottom=(below + 0.5) / height, hspace=0.52, wspace=0.17)
    for number, panel in enumerate(drawn_panels):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        axes.set_xlim(0, 1.02 * end_of(drawn_panels, runs, settings.axis))
        _draw_panel(axes, panel, runs, settings.axis, window)
    foot = figure.add_axes((0.25 / WIDTH, 0.0, 1 - 0.5 / WIDTH, below / height))
    foot.set(xlim=(0, WIDTH - 0.5), ylim=(below, 0))        # in inches, downwards
    foot.axis("off")
    if table:
        table.draw(foot)
    for number, line in enumerate(notes):
        foot.text(0, below - 0.1 - _LINE_HEIGHT * (len(notes) - number - 0.5), line, size=TEXT_SIZE - 0.5,
                  color=_NOTE_COLOR, va="center")
    return figure


def _on_lines(drawn_panels: Sequence[Panel], window: int) -> list[str]:
    """Return notes on running means and marked points."""
    smooth = [panel.name for panel in drawn_panels if panel.smooth]
    notes = []
    if smooth and window > 1:
        notes.append(f"{' and '.join(smooth)}: running means over {window} logged figures; pale: as they were logged.")
    if any(panel.mode for panel in drawn_panels):
        notes.append("A ring marks the best validation of a run by the score of its panel.")
    return [" ".join(text[0].upper() + text[1:] for text in notes)] if notes else []


def _on_axis(axis: str, runs: Sequence[RecordedRun]) -> list[str]:
    """Return a note on runs without a position on the axis."""
    names = _runs_without(axis, runs)
    return [f"{', '.join(names)}: no {AXES[axis][1]} are recorded, so curves are missing."] if names else []


def _draw_panel(axes: Any, panel: Panel, runs: Sequence[RecordedRun], axis: str, window: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for number, run in enumerate(runs):
        curve, style = panel.of(run, axis), line_style(number)
        if not curve.x:
            continue
        smooth = panel.smooth and window > 1
        if smooth:
            axes.plot(curve.x, curve.y, color=style["color"], linewidth=0.8, alpha=0.22)
        values = running_means(curve.y, window) if smooth else curve.y
        # Markers on short curves make a single point visible.
        axes.plot(curve.x, values, marker="o" if len(curve.x) < 30 and panel.mode else None, markersize=3, **style)
        _mark_best(axes, panel, curve, style["color"], len(runs) < _RUNS_WITHOUT_VALUES)
    axes.set_title(panel.title)
    axes.set_xlabel(AXES[axis][1], size=9)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    if "loss" not in panel.title:
        axes.set_ylim(bottom=0)


def line_style(number: int) -> dict[str, Any]:
    """Return Matplotlib's arguments for the style of a run's lines."""
    style = style_of(number)
    dash = DASHES[style.dash]
    return {"color": COLORS[style.color], "linewidth": 1.7, "linestyle": (0, dash) if dash else "-"}


def _mark_best(axes: Any, panel: Panel, curve: Curve, color: str, with_value: bool) -> None:
    """Draw a ring around the best point, with its value if requested."""
    index = panel.best_index(curve)
    if index is None:
        return
    point = curve.x[index], curve.y[index]
    axes.plot(*point, marker="o", markersize=8.5, markerfacecolor="none", markeredgecolor=color,
              markeredgewidth=1.6, linestyle="none", clip_on=False, zorder=5)
    if with_value:
        above = panel.mode == "max"
        axes.annotate(score_text(panel.scalars[0], point[1]), point, xytext=(0, -9 if above else 9), color=color,
                      size=8.5, textcoords="offset points", ha="right", va="top" if above else "bottom", zorder=6,
                      bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75})
