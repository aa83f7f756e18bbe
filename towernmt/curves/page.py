"""The curves of runs as one page that needs nothing else: no other file, no server, no other host.

Tables are written here; the curves are data, which the page's script (`assets/curves.js`) draws over updates, tokens or
minutes. The script puts text into the page as text, and never as markup. The look is that of the page of
`towernmt evaluate`, whose style sheet it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from towernmt.curves.differences import differences, without_differences
from towernmt.curves.final_figures import NOTHING, final_figures
from towernmt.curves.notes import notes_on
from towernmt.curves.panels import AXES, KINDS, Panel, odd_window, panels, thinned, thinning, usual_window
from towernmt.curves.recorded_run import RecordedRun
from towernmt.curves.styles import DASHES, style_of
from towernmt.dataflow.text.cleaning import one_line
from towernmt.predict.text_io import write_lines

TITLE = "Training curves"
MOST_POINTS = 2000
"""Of a curve in the page; of longer ones, the means of neighbours."""
_DIGITS = 6     # of a value in the page


def write_page(runs: Sequence[RecordedRun], path: str | Path, axis: str = "updates", window: int = 0) -> None:
    """Write the page into a file.

    Raises:
        DataError: the file cannot be written.
    """
    write_lines(path, [html_page(runs, axis, window)])


def html_page(runs: Sequence[RecordedRun], axis: str = "updates", window: int = 0) -> str:
    """The page, as HTML.

    Args:
        runs: in the order of their styles.
        axis: what it begins with, one of `AXES`.
        window: logged figures in a running mean at first, of an even number one more; 0 for as many as suit the longest
            run.
    """
    parts = {"title": TITLE, "summary": escape(_summary(runs)), "notes": "".join(_notes(runs)),
             "figures": _figures(runs), "differences": _differences(runs),
             "data": _embedded(page_data(runs, axis, odd_window(window or usual_window(runs)))),
             "style": _asset("towernmt.predict.evaluation", "page.css") + _asset("towernmt.curves", "curves.css"),
             "script": _asset("towernmt.curves", "curves.js")}
    return re.sub(r"<!--(\w+)-->", lambda found: parts[found[1]], _asset("towernmt.curves", "curves.html"))


def page_data(runs: Sequence[RecordedRun], axis: str, window: int) -> dict[str, Any]:
    """What the page's script draws: of each kind that there is, the curves, with their places on every axis."""
    drawn = []
    for panel in panels(runs, KINDS):
        curves = [_curve(panel, run) for run in runs]
        drawn.append({"title": panel.title, "mode": panel.mode, "smooth": panel.smooth, "curves": curves,
                      "fromZero": "loss" not in panel.title})
    return {"axis": axis, "window": window, "axes": {name: label for name, (_, label) in AXES.items()},
            "runs": [{"name": run.name, **style_of(number)._asdict()} for number, run in enumerate(runs)],
            "dashes": [" ".join(f"{1.8 * length:g}" for length in dash) for dash in DASHES], "panels": drawn}


def _curve(panel: Panel, run: RecordedRun) -> dict[str, Any]:
    """A run's curve: places, values, and how many logged figures each value is the mean of."""
    values = panel.of(run, "updates").y
    return {**{name: _rounded(panel.of(run, name).x) for name in AXES}, "y": _rounded(values),
            "each": thinning(len(values), MOST_POINTS)}


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
            for value in thinned(values, MOST_POINTS)]


def _embedded(data: dict[str, Any]) -> str:
    """JSON that may stand in a `<script>`: nothing in it can end that, or begin a comment."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(package: str, name: str) -> str:
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


def _summary(runs: Sequence[RecordedRun]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}: {', '.join(one_line(str(run.path)) for run in runs)}"


def _notes(runs: Sequence[RecordedRun]) -> Iterator[str]:
    for note in notes_on(runs):
        yield f"<li>{escape(note)}</li>"


def _figures(runs: Sequence[RecordedRun]) -> str:
    columns = final_figures(runs)
    rows = [[column.cells[number] for column in columns] for number in range(len(runs))]
    return _table(["run", *(column.head for column in columns)],
                  [[run.name, *row] for run, row in zip(runs, rows, strict=True)])


def _differences(runs: Sequence[RecordedRun]) -> str:
    found = differences(runs)
    if not found:
        return f"<caption>{without_differences(runs)}</caption>"
    return _table(["setting", *(run.name for run in runs)], [[one.key, *one.values] for one in found])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(f"<tr><th>{escape(first)}</th>{''.join(f'<td>{_cell(text)}</td>' for text in others)}</tr>"
                   for first, *others in rows)
    return f"<thead><tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr></thead><tbody>{body}</tbody>"


def _cell(text: str) -> str:
    return f"<small>{text}</small>" if text == NOTHING else escape(text)
