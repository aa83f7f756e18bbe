"""Compare the results of runs as text or JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from towernmt.callbacks.validation_metrics import METRICS, mode_of
from towernmt.core.text_table import align_columns
from towernmt.plots.panels import AXES
from towernmt.plots.recorded_runs import MINUTES, TOKENS, RecordedRun, differences, notes_on, without_differences


@dataclass(frozen=True)
class RunOutcome:
    """The results of a run; None is a value that it did not record.

    Attributes:
        metric: the validation scalar by which the best step is chosen.
        label: label of the metric, such as "BLEU".
        best, best_step: the best score and its step.
        last: the score of the last validation.
        averaged: the score, on more sentences, of the mean or the last checkpoint if it was better than the best one at
            the end of training.
        updates: number of updates.
        target_tokens: number of target tokens trained on.
        minutes: minutes of training.
        speed: target tokens per second of training, over the complete run.
        loss: the last logged training loss.
    """

    metric: str
    label: str
    best: float | None
    best_step: int | None
    last: float | None
    averaged: float | None
    updates: int
    target_tokens: float | None
    minutes: float | None
    speed: float | None
    loss: float | None

    @property
    def best_text(self) -> str:
        """Text such as `BLEU 31.40`; "" without a validation."""
        return "" if self.best is None else f"{self.label} {self.text(self.best)}"

    def text(self, score: float) -> str:
        """Return a score with the digits of its metric."""
        return score_text(self.metric, score)


def score_text(scalar: str, score: float) -> str:
    """Return a score with the digits of its metric.

    Args:
        scalar: name of a validation scalar, such as `validation_bleu/talks`.
        score: the score.
    """
    name = scalar.split("/")[0].removeprefix("validation_")
    return METRICS[name].text(score) if name in METRICS else f"{score:.2f}"


def run_outcome(run: RecordedRun) -> RunOutcome:
    """Return the results of a run."""
    metric = _metric(run)
    scores, means = run.values(metric), run.values(f"averaged_{metric}")
    best_score = best_step = None
    for step, score in scores:
        if best_score is None or (score >= best_score if mode_of(metric) == "max" else score <= best_score):
            best_score, best_step = score, step
    end = run.rows[-1] if run.rows else {}
    loss = run.values("nll") or run.values("loss")
    speeds = run.values("target_tokens_per_second")
    return RunOutcome(
        metric, _label(metric), best_score, best_step, scores[-1][1] if scores else None,
        means[-1][1] if means else None, run.last_step, end.get(TOKENS), end.get(MINUTES), _speed(speeds),
        loss[-1][1] if loss else None)


def _metric(run: RecordedRun) -> str:
    """Return the scalar of `validation.metric` and `validation.metric_set`, or BLEU if it is missing."""
    name = str(run.settings.get("validation.metric", "bleu"))
    default = METRICS["bleu"].scalar()
    if name not in METRICS:
        return default
    metric_set = str(run.settings.get("validation.metric_set") or "")
    candidates = METRICS[name].scalar(metric_set), METRICS[name].scalar()   # the scalars of the first set have no name
    return next((scalar for scalar in candidates if scalar in run.scalars), default)


def _label(metric: str) -> str:
    name, _, set_name = metric.removeprefix("validation_").partition("/")
    label = METRICS[name].label if name in METRICS else name
    return f"{label} on {set_name}" if set_name else label


def _speed(speeds: list[tuple[int, float]]) -> float | None:
    """Return the mean of speeds, each of which covers the same number of updates."""
    if not speeds:
        return None
    return len(speeds) / sum(1 / max(speed, 1e-9) for _, speed in speeds)


NOTHING = "–"


@dataclass(frozen=True)
class FinalFigure:
    """A column of the comparison.

    Attributes:
        head: heading of the column.
        cells: the text of each run.
    """

    head: str
    cells: list[str]


def final_figures(runs: Sequence[RecordedRun]) -> list[FinalFigure]:
    """Return columns for best, last and averaged score, updates, tokens, minutes, speed and loss, without empty ones.

    If the runs choose their best step by different metrics, each cell names its metric.
    """
    outcomes = [run_outcome(run) for run in runs]
    labels = {outcome.label for outcome in outcomes if outcome.best is not None}
    alike = len(labels) < 2
    label = labels.pop() if len(labels) == 1 else "score"
    columns: list[tuple[str, Callable[[RunOutcome], str]]] = [
        (f"best {label}", lambda outcome: (
            "" if outcome.best is None else outcome.text(outcome.best) if alike else outcome.best_text)),
        ("at update", lambda outcome: _rounded(outcome.best_step)),
        ("last", lambda outcome: "" if outcome.last is None else outcome.text(outcome.last)),
        ("averaged", lambda outcome: "" if outcome.averaged is None else outcome.text(outcome.averaged)),
        ("updates", lambda outcome: _rounded(outcome.updates)),
        ("tokens", lambda outcome: "" if outcome.target_tokens is None else short_number(outcome.target_tokens)),
        ("minutes", lambda outcome: "" if outcome.minutes is None else f"{outcome.minutes:,.1f}"),
        ("tokens/s", lambda outcome: _rounded(outcome.speed)),
        ("loss", lambda outcome: "" if outcome.loss is None else f"{outcome.loss:.3f}")]
    table = [FinalFigure(head, [cell(outcome) for outcome in outcomes]) for head, cell in columns]
    return [FinalFigure(figure.head, [text or NOTHING for text in figure.cells])
            for figure in table if any(figure.cells)]


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def short_number(value: float) -> str:
    """Return a number as short text: 12,500 as 12.5k, 2,000,000 as 2M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


_SHARES = (0.5, 1.0)        # points of comparison, as shares of the shortest run


def comparison_as_text(runs: Sequence[RecordedRun], sizes: Sequence[int | None]) -> str:
    """Return tables with one column for each run.

    Args:
        runs: the runs.
        sizes: number of parameters of each run; None if not known.
    """
    figures = [[figure.head, *figure.cells] for figure in final_figures(runs)]
    figures.append(["parameters", *(NOTHING if size is None else f"{size:,}" for size in sizes)])
    best_so_far = [[f"best {row.label} by {short_number(float(f'{row.until:.3g}'))} {row.unit}", *(
        NOTHING if value is None else score_text(row.metric, value) for value in row.scores)]
        for row in _best_so_far(runs)]
    differing = [[difference.key, *difference.values] for difference in differences(runs)]
    head = ["", *(run.name for run in runs)]
    sections = ["\n".join(align_columns([head, *figures, *best_so_far]))]
    if len(runs) > 1:
        sections.append("\n".join(align_columns([["what differs", *head[1:]], *differing])) if differing else
                        without_differences(runs))
    return "\n\n".join([*sections, *(["\n".join(notes_on(runs))] if notes_on(runs) else [])])


def comparison_as_json(runs: Sequence[RecordedRun], sizes: Sequence[int | None]) -> dict[str, Any]:
    """Return the comparison as values that JSON can represent; unknown values are null."""
    return {
        "runs": [{"name": run.name, "path": str(run.path), "parameters": size, **asdict(run_outcome(run)),
                  "notes": run.notes} for run, size in zip(runs, sizes, strict=True)],
        "best_so_far": [{"score": row.label, "by": row.until, "unit": row.unit, "values": _by_name(runs, row.scores)}
                        for row in _best_so_far(runs)],
        "differences": {difference.key: _by_name(runs, difference.values) for difference in differences(runs)},
        "notes": notes_on(runs)}


def _by_name(runs: Sequence[RecordedRun], values: Sequence[Any]) -> dict[str, Any]:
    return {run.name: value for run, value in zip(runs, values, strict=True)}


@dataclass(frozen=True)
class _BestSoFar:
    """The best score of each run up to a point on an axis.

    Attributes:
        metric, label: the validation scalar and its label.
        until, unit: the point on the axis.
        scores: the score of each run; None without a validation up to that point.
    """

    metric: str
    label: str
    until: float
    unit: str
    scores: list[float | None]


def _best_so_far(runs: Sequence[RecordedRun]) -> Iterator[_BestSoFar]:
    """Yield the best scores up to some points on each axis, until the end of the shortest run.

    Runs without a validation are ignored; runs with different metrics cannot be compared.
    """
    validated = [run for run in runs if run_outcome(run).best is not None]
    outcomes = [run_outcome(run) for run in validated]
    if len(validated) < 2 or len({outcome.metric for outcome in outcomes}) != 1:
        return
    metric, label = outcomes[0].metric, outcomes[0].label
    for axis, unit in AXES.values():
        ends = [run.rows[-1][axis] for run in validated if axis in run.rows[-1]]
        for share in _SHARES if len(ends) == len(validated) else ():
            until = share * min(ends)
            scores = [_best_until(run, metric, axis, until) for run in runs]
            if any(score is not None for score in scores):
                yield _BestSoFar(metric, label, until, unit, scores)


def _best_until(run: RecordedRun, metric: str, axis: str, until: float) -> float | None:
    scores = [row[metric] for row in run.rows if metric in row and row.get(axis, math.inf) <= until]
    return (max if mode_of(metric) == "max" else min)(scores) if scores else None
