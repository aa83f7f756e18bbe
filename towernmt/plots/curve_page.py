"""Render the curves of runs as one self-contained web page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from towernmt.dataflow.text.clean_text import one_line
from towernmt.plots.panels import (
    AXES,
    DASHES,
    KINDS,
    Panel,
    odd_window,
    panels,
    style_of,
    thinned,
    thinning,
    usual_window,
)
from towernmt.plots.recorded_runs import RecordedRun, differences, notes_on, without_differences
from towernmt.plots.run_comparison import NOTHING, final_figures
from towernmt.predict.lines.text_io import write_lines

TITLE = "Training curves"
MOST_POINTS = 2000
"""Maximum number of points of a curve in the page; longer curves show means of neighbouring points."""
_DIGITS = 6     # significant digits of a value in the page


def write_page(runs: Sequence[RecordedRun], path: str | Path, axis: str = "updates", window: int = 0) -> None:
    """Write the page into a file.

    Raises:
        DataError: the file cannot be written.
    """
    write_lines(path, [curves_html(runs, axis, window)])


def curves_html(runs: Sequence[RecordedRun], axis: str = "updates", window: int = 0) -> str:
    """Return the page as HTML.

    Args:
        runs: the runs, in the order of their styles.
        axis: the initial axis: "updates", "tokens" or "minutes".
        window: initial number of logged figures in a running mean, rounded up to an odd number; 0: suitable for the
            longest run.
    """
    notes = "".join(f"<li>{escape(note)}</li>" for note in notes_on(runs))
    parts = {"title": TITLE, "summary": escape(_summary(runs)), "notes": notes,
             "figures": _figures(runs), "differences": _differences(runs),
             "data": _embedded(curve_page_data(runs, axis, odd_window(window or usual_window(runs)))),
             "style": _asset("towernmt.evaluate", "page.css") + _asset("towernmt.plots", "curves.css"),
             "script": _asset("towernmt.plots", "curves.js")}
    return re.sub(r"<!--(\w+)-->", lambda match: parts[match[1]], _asset("towernmt.plots", "curves.html"))


def curve_page_data(runs: Sequence[RecordedRun], axis: str, window: int) -> dict[str, Any]:
    """Return the data of the page's script: the curves of each available kind, with values on every axis."""
    content = []
    for panel in panels(runs, KINDS):
        curves = [_curve(panel, run) for run in runs]
        content.append({"title": panel.title, "mode": panel.mode, "smooth": panel.smooth, "curves": curves,
                        "fromZero": "loss" not in panel.title})
    return {"axis": axis, "window": window, "axes": {name: label for name, (_, label) in AXES.items()},
            "runs": [{"name": run.name, **style_of(number)._asdict()} for number, run in enumerate(runs)],
            "dashes": [" ".join(f"{1.8 * length:g}" for length in dash) for dash in DASHES], "panels": content}


def _curve(panel: Panel, run: RecordedRun) -> dict[str, Any]:
    """Return a run's curve: positions, values, and the number of logged figures in the mean of each value."""
    values = panel.of(run, "updates").y
    return {**{name: _rounded(panel.of(run, name).x) for name in AXES}, "y": _rounded(values),
            "each": thinning(len(values), MOST_POINTS)}


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
            for value in thinned(values, MOST_POINTS)]


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON that is safe inside a `<script>`: it cannot end the element or start a comment."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(package: str, name: str) -> str:
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


def _summary(runs: Sequence[RecordedRun]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}: {', '.join(one_line(str(run.path)) for run in runs)}"


def _figures(runs: Sequence[RecordedRun]) -> str:
    columns = final_figures(runs)
    rows = [[column.cells[number] for column in columns] for number in range(len(runs))]
    return _table(["run", *(column.head for column in columns)],
                  [[run.name, *row] for run, row in zip(runs, rows, strict=True)])


def _differences(runs: Sequence[RecordedRun]) -> str:
    rows = [[difference.key, *difference.values] for difference in differences(runs)]
    if not rows:
        return f"<caption>{without_differences(runs)}</caption>"
    return _table(["setting", *(run.name for run in runs)], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(f"<tr><th>{escape(first)}</th>{''.join(f'<td>{_cell(text)}</td>' for text in cells)}</tr>"
                   for first, *cells in rows)
    return f"<thead><tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr></thead><tbody>{body}</tbody>"


def _cell(text: str) -> str:
    return f"<small>{text}</small>" if text == NOTHING else escape(text)
