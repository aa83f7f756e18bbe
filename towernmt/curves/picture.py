"""The curves of runs as a PNG or an SVG, drawn by Matplotlib (`towernmt[plot]`), with what differs in a table below."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError, SettingsError
from towernmt.curves.differences import differences
from towernmt.curves.final_figures import short_number
from towernmt.curves.notes import notes_on
from towernmt.curves.outcome import score_text
from towernmt.curves.panels import (
    AXES,
    DEFAULT_KINDS,
    Curve,
    Panel,
    end_of,
    odd_window,
    panels,
    running_means,
    usual_window,
)
from towernmt.curves.picture_table import TEXT_SIZE, PictureTable
from towernmt.curves.recorded_run import RecordedRun
from towernmt.curves.styles import COLORS, DASHES, style_of
from towernmt.predict.alignment.fonts import families_of_picture, without_font_warnings
from towernmt.predict.output_file import output_file

SUFFIXES = (".png", ".svg")
WIDTH = 11.0            # inches
_PANEL_HEIGHT = 2.5
_LINE = 0.2             # inches a line of text
_WRAP = 175             # characters of a note's line
_MANY = 4               # runs from which on a best point has no number beside it
_QUIET = "#5d6670"
LOOK = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.titlesize": 10, "axes.titlelocation": "left",
    "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#9aa5b1",
    "axes.grid": True, "grid.color": "#e4e8ec", "grid.linewidth": 0.8, "axes.axisbelow": True, "xtick.color": "#39424c",
    "ytick.color": "#39424c", "svg.fonttype": "none", "svg.hashsalt": "towernmt", "text.parse_math": False,
    "axes.formatter.use_mathtext": False, "lines.dash_capstyle": "butt"}
"""Matplotlib's settings for pictures in this style."""


@dataclass(frozen=True)
class PictureSettings:
    """What is drawn.

    Attributes:
        axis: one of `AXES`.
        kinds: of panels, of `panels.KINDS`.
        window: logged figures in a running mean; 1 for none; of an even number one more; 0 for as many
            as suit the longest run.
        table: whether the runs' figures, and the settings that differ, stand below.
    """

    axis: str = "updates"
    kinds: Sequence[str] = DEFAULT_KINDS
    window: int = 0
    table: bool = True


def draw(runs: Sequence[RecordedRun], path: str | Path, settings: PictureSettings | None = None) -> None:
    """Draw runs into a file; its suffix says in which format.

    Raises:
        DataError: the runs have recorded nothing of this, or the file cannot be written.
        SettingsError: Matplotlib is not installed.
    """
    settings = settings or PictureSettings()
    matplotlib = import_matplotlib()
    chosen = panels(runs, settings.kinds)
    if not chosen:
        raise DataError(f"{', '.join(str(run.path) for run in runs)}: nothing is recorded that could be drawn; wait "
                        "for the first line of figures of the training.")
    vector = Path(path).suffix.lower() == ".svg"
    look = LOOK if vector else {**LOOK, "font.family": families_of_picture(_foreign_text(runs, chosen), path)}
    with matplotlib.rc_context(look), without_font_warnings():
        figure = _figure(runs, chosen, settings)
        content = io.BytesIO()
        figure.savefig(content, format="svg" if vector else "png", dpi=130,
                       metadata={"Date": None, "Creator": None} if vector else None)
    with output_file(path) as file:
        file.write(content.getvalue())


def _foreign_text(runs: Sequence[RecordedRun], chosen: Sequence[Panel]) -> str:
    """What is written into a picture in any script: names of runs and of validation sets, and settings."""
    return "".join([*(run.name for run in runs), *(panel.title for panel in chosen),
                    *(value for one in differences(runs) for value in one.values)])


def import_matplotlib() -> Any:
    """Matplotlib.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        import matplotlib
        import matplotlib.figure  # noqa: F401 - loaded here, so that what is missing is said at once
    except ImportError as error:
        raise SettingsError("Pictures are drawn by Matplotlib: install it with pip install 'towernmt[plot]', or write "
                            "an .html page, which needs none.") from error
    return matplotlib


def _figure(runs: Sequence[RecordedRun], chosen: Sequence[Panel], settings: PictureSettings) -> Any:
    from matplotlib.figure import Figure

    columns = 1 if len(chosen) == 1 else 3 if len(chosen) > 6 else 2
    rows = math.ceil(len(chosen) / columns)
    window = odd_window(settings.window or usual_window(runs))
    notes = [line for note in [*_on_lines(chosen, window), *notes_on(runs)] for line in textwrap.wrap(note, _WRAP)]
    table = PictureTable(runs, WIDTH - 0.5) if settings.table else None
    below = (table.height if table else 0.0) + _LINE * len(notes) + 0.25
    height = rows * _PANEL_HEIGHT + 0.15 + below
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    places = figure.add_gridspec(rows, columns, left=0.065, right=0.985, top=1 - 0.35 / height,
                                 bottom=(below + 0.5) / height, hspace=0.52, wspace=0.17)
    for number, panel in enumerate(chosen):
        axes = figure.add_subplot(places[number // columns, number % columns])
        axes.set_xlim(0, 1.02 * end_of(chosen, runs, settings.axis))
        _draw_panel(axes, panel, runs, settings.axis, window)
    foot = figure.add_axes((0.25 / WIDTH, 0.0, 1 - 0.5 / WIDTH, below / height))
    foot.set(xlim=(0, WIDTH - 0.5), ylim=(below, 0))        # in inches, downwards
    foot.axis("off")
    if table:
        table.draw(foot)
    for number, line in enumerate(notes):
        foot.text(0, below - 0.1 - _LINE * (len(notes) - number - 0.5), line, size=TEXT_SIZE - 0.5, color=_QUIET,
                  va="center")
    return figure


def _on_lines(chosen: Sequence[Panel], window: int) -> list[str]:
    """What a reader must know of the lines."""
    smooth = [panel.name for panel in chosen if panel.smooth]
    found = []
    if smooth and window > 1:
        found.append(f"{' and '.join(smooth)}: running means over {window} logged figures; pale: as they were logged.")
    if any(panel.mode for panel in chosen):
        found.append("A ring marks the best validation of a run by the score of its panel.")
    return [" ".join(text[0].upper() + text[1:] for text in found)] if found else []


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
        # a few points are marked, so that a curve of one point can be seen
        axes.plot(curve.x, values, marker="o" if len(curve.x) < 30 and panel.mode else None, markersize=3, **style)
        _mark_best(axes, panel, curve, style["color"], len(runs) < _MANY)
    axes.set_title(panel.title)
    axes.set_xlabel(AXES[axis][1], size=9)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    if "loss" not in panel.title:
        axes.set_ylim(bottom=0)


def line_style(number: int) -> dict[str, Any]:
    """The style of a run's lines, as Matplotlib has it."""
    style = style_of(number)
    dash = DASHES[style.dash]
    return {"color": COLORS[style.color], "linewidth": 1.7, "linestyle": (0, dash) if dash else "-"}


def _mark_best(axes: Any, panel: Panel, curve: Curve, color: str, tell: bool) -> None:
    """A ring around the best point, with its value where there is room for it."""
    best = panel.best(curve)
    if best is None:
        return
    place = curve.x[best], curve.y[best]
    axes.plot(*place, marker="o", markersize=8.5, markerfacecolor="none", markeredgecolor=color,
              markeredgewidth=1.6, linestyle="none", clip_on=False, zorder=5)
    if tell:
        above = panel.mode == "max"
        axes.annotate(score_text(panel.scalars[0], place[1]), place, xytext=(0, -9 if above else 9), color=color,
                      size=8.5, textcoords="offset points", ha="right", va="top" if above else "bottom", zorder=6,
                      bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75})
