"""Results of `quality.py`: scores, lines of JSON and their plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from json_lines import append_record, read_records

from towernmt.core.errors import DataError
from towernmt.plots.picture import MATPLOTLIB_STYLE, import_matplotlib, line_style
from towernmt.predict.lines.output_file import output_file

OURS = "towernmt"


@dataclass(frozen=True)
class Result:
    """Quality of one program at one mark of its training.

    Attributes:
        peer: name of the program.
        variant: name of its recipe.
        cpus: number of processors.
        mark: requested minutes.
        minute: actual minutes of training at the checkpoint.
        bleu, chrf: scores on the test set.
        valid_bleu: BLEU on the validation sentences that selected the checkpoint; None if the program selected it.
        updates, target_tokens: amounts of training up to the mark.
        checkpoint: name of the checkpoint that translated.
        signature: BLEU signature of sacreBLEU.
        version: version of the program.
    """

    peer: str
    variant: str
    cpus: int
    mark: float
    minute: float
    bleu: float
    chrf: float
    valid_bleu: float | None
    updates: int
    target_tokens: int
    checkpoint: str
    signature: str
    version: str

    @property
    def key(self) -> tuple[str, str, int, float]:
        """Identity of a measurement: program, variant, processors and mark."""
        return (*self.line, self.mark)

    @property
    def line(self) -> tuple[str, str, int]:
        """Identity of a curve in the plot: program, variant and processors."""
        return self.peer, self.variant, self.cpus


def read_results(path: Path) -> list[Result]:
    """Read the results in a file without an unfinished last line; an empty list if the file is missing.

    Raises:
        DataError: a line is not a result.
    """
    try:
        records = read_records(path)
    except ValueError as error:
        raise DataError(str(error)) from error
    results = []
    for number, record in enumerate(records, start=1):
        try:
            results.append(Result(**record))
        except TypeError as error:
            raise DataError(f"{path}, line {number}: not a result; remove the line.") from error
    return results


def append_result(path: Path, result: Result) -> None:
    """Append a result, replacing an unfinished last line."""
    append_record(path, {name: round(value, 4) if isinstance(value, float) else value
                         for name, value in asdict(result).items()})


def scores(translations: Sequence[str], references: Sequence[str]) -> tuple[float, float, str]:
    """Return BLEU, chrF and the signature of BLEU, with the defaults of sacreBLEU."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU()
    score = bleu.corpus_score(list(translations), [list(references)]).score
    return score, CHRF().corpus_score(list(translations), [list(references)]).score, str(bleu.get_signature())


def lines_of(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the curves by name, towernmt first, each in order of time."""
    several = len({result.cpus for result in results}) > 1
    curves: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.peer != OURS, result.line, result.minute)):
        name = result.peer if result.peer == OURS else f"{result.peer}, {result.variant}"
        curves.setdefault(f"{name}, {result.cpus} CPU" if several else name, []).append(result)
    return curves


def draw(results: Sequence[Result], path: Path) -> None:
    """Plot BLEU over minutes of training as PNG or SVG.

    Raises:
        DataError: no results, or the file cannot be written.
        SettingsError: Matplotlib is not installed.
    """
    if not results:
        raise DataError("Nothing to draw: no result was measured yet.")
    matplotlib = import_matplotlib()
    vector = path.suffix.lower() == ".svg"
    with matplotlib.rc_context(MATPLOTLIB_STYLE):
        content = io.BytesIO()
        _figure(lines_of(results)).savefig(content, format="svg" if vector else "png", dpi=130,
                                           metadata={"Date": None, "Creator": None} if vector else None)
    with output_file(path) as file:
        file.write(content.getvalue())


def _figure(lines: dict[str, list[Result]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), facecolor="white")
    axes = figure.add_axes((0.085, 0.17, 0.895, 0.75))
    for number, (name, results) in enumerate(lines.items()):
        ours = results[0].peer == OURS
        axes.plot([result.minute for result in results], [result.bleu for result in results], label=name,
                  marker="o", markersize=6 if ours else 3, clip_on=False, zorder=3, **line_style(number))
    axes.set_title("Test BLEU")
    axes.set_xlabel("minutes of training")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="best", handlelength=3.2)
    if any(results[0].peer == OURS for results in lines.values()):
        figure.text(0.085, 0.02, "Each point of towernmt is a separate run, whose learning rate decays to its end. "
                    "The points of each peer are from one run.", size=8, color="#5d6670")
    return figure
