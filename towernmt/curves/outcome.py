"""What became of a run, in a few figures."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.callbacks.validation.metrics import METRICS, mode_of
from towernmt.curves.recorded_run import RecordedRun
from towernmt.curves.totals import MINUTES, TOKENS


@dataclass(frozen=True)
class Outcome:
    """Of a run; None is what it did not record.

    Attributes:
        metric: the scalar of validation that its best step is chosen by.
        label: the same in words, such as "BLEU".
        best, best_step: the best of it, and where.
        last: of the last validation.
        averaged: of the mean, or the last checkpoint, that was better than the best one when training ended; of more
            sentences than the others.
        updates: that were made.
        target_tokens: that it trained on.
        minutes: of training.
        speed: target tokens a second of training, over the whole run.
        loss: training loss as last logged.
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
        """As `BLEU 31.40`; "" without a validation."""
        return "" if self.best is None else f"{self.label} {self.text(self.best)}"

    def text(self, score: float) -> str:
        """A score with the digits of its metric."""
        return score_text(self.metric, score)


def score_text(scalar: str, score: float) -> str:
    """A score with the digits of its metric.

    Args:
        scalar: of validation, such as `validation_bleu/talks`.
    """
    name = scalar.split("/")[0].removeprefix("validation_")
    return METRICS[name].text(score) if name in METRICS else f"{score:.2f}"


def outcome(run: RecordedRun) -> Outcome:
    """The figures of a run."""
    metric = _metric(run)
    scores, means = run.values(metric), run.values(f"averaged_{metric}")
    best = best_step = None
    for step, score in scores:
        if best is None or (score >= best if mode_of(metric) == "max" else score <= best):
            best, best_step = score, step
    end = run.rows[-1] if run.rows else {}
    loss = run.values("nll") or run.values("loss")
    speeds = run.values("target_tokens_per_second")
    return Outcome(
        metric, _label(metric), best, best_step, scores[-1][1] if scores else None, means[-1][1] if means else None,
        run.last_step, end.get(TOKENS), end.get(MINUTES), _speed(speeds), loss[-1][1] if loss else None)


def _metric(run: RecordedRun) -> str:
    """As `validation.metric` and `validation.metric_set` have it; BLEU, if that is not there."""
    name = str(run.settings.get("validation.metric", "bleu"))
    chosen = METRICS[name].scalar(str(run.settings.get("validation.metric_set") or "")) if name in METRICS else ""
    first = METRICS[name].scalar() if name in METRICS else ""       # a set may be named that is the first one
    return next((one for one in (chosen, first) if one in run.scalars), METRICS["bleu"].scalar())


def _label(metric: str) -> str:
    name, _, of = metric.removeprefix("validation_").partition("/")
    label = METRICS[name].label if name in METRICS else name
    return f"{label} on {of}" if of else label


def _speed(speeds: list[tuple[int, float]]) -> float | None:
    """The mean speed: tokens over seconds, where each value holds for the same number of updates."""
    if not speeds:
        return None
    return len(speeds) / sum(1 / max(speed, 1e-9) for _, speed in speeds)
