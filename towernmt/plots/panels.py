"""The panels of a picture, each with one scalar over one axis, and the colours and line styles of runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from towernmt.callbacks.validation_metrics import METRICS, mode_of
from towernmt.plots.recorded_runs import MINUTES, TOKENS, RecordedRun, all_scalars

COLORS = ("#0072b2", "#d55e00", "#009e73", "#8a5a2b", "#3a9ac9", "#6b7785", "#b65a94", "#b58900")
"""Among the first 16 runs, colours that some people cannot distinguish have different line styles."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.6, 1.2, 1.6), (9, 2))
"""Lengths of strokes and gaps, in line widths; the first style is solid."""


class Style(NamedTuple):
    """The style of a run's lines.

    Attributes:
        color: an index into `COLORS`.
        dash: an index into `DASHES`.
    """

    color: int
    dash: int


def style_of(number: int) -> Style:
    """Return the style of run `number`, from 0; styles repeat after 40 runs."""
    return Style(number % len(COLORS), number % len(DASHES))


AXES = {"updates": ("global_step", "updates"), "tokens": (TOKENS, "target tokens"), "minutes": (MINUTES, "minutes")}
"""The axes of curves: name in the rows, and label."""
KINDS = ("loss", *(f"validation-{name}" for name in METRICS), "rate", "speed")
"""All kinds of panels."""
DEFAULT_KINDS = tuple(kind for kind in KINDS if kind != "validation-perplexity")
"""All kinds except perplexity, which is the validation loss on another scale."""
_WINDOWS_PER_RUN = 40


@dataclass(frozen=True)
class Panel:
    """One panel of a picture.

    Attributes:
        name: name in messages.
        title: title with the unit.
        scalars: names of scalars; the first one that a run has is drawn.
        mode: 'max' or 'min' if the best point is marked; else "".
        smooth: whether running means are drawn.
    """

    name: str
    title: str
    scalars: tuple[str, ...]
    mode: str = ""
    smooth: bool = False

    def of(self, run: RecordedRun, axis: str) -> Curve:
        """Return the curve of a run.

        Args:
            run: the run.
            axis: one of `AXES`.
        """
        scalar = next((name for name in self.scalars if name in run.scalars), "")
        position = AXES[axis][0]
        points = [(row[position], row[scalar]) for row in run.rows if scalar in row and position in row]
        return Curve([x for x, _ in points], [y for _, y in points])

    def best_index(self, curve: Curve) -> int | None:
        """Return the index of the best point, of equal points the last as in validation; None if none is marked."""
        if not self.mode or not curve.y:
            return None
        best_value = (max if self.mode == "max" else min)(curve.y)
        return max(i for i, value in enumerate(curve.y) if value == best_value)


@dataclass(frozen=True)
class Curve:
    """The points of a curve, with ascending `x`."""

    x: list[float]
    y: list[float]


def panels(runs: Sequence[RecordedRun], kinds: Sequence[str] = DEFAULT_KINDS) -> list[Panel]:
    """Return the panels with data of any run, in the order of the kinds.

    Args:
        runs: the runs.
        kinds: kinds of panels, from `KINDS`.
    """
    scalars = all_scalars(runs)
    candidates = []
    for kind in kinds:
        if kind.startswith("validation-"):
            candidates += _validation_panels(kind.removeprefix("validation-"), scalars)
        else:
            candidates.append(_TRAINING_PANELS[kind])
    return [panel for panel in candidates if scalars & set(panel.scalars)]


def end_of(drawn_panels: Sequence[Panel], runs: Sequence[RecordedRun], axis: str) -> float:
    """Return the largest position of any curve, so that all panels have the same axis; 1 without curves."""
    return max((x for panel in drawn_panels for run in runs for x in panel.of(run, axis).x[-1:]), default=0.0) or 1.0


_TRAINING_PANELS = {
    "loss": Panel("training loss", "training loss, nats a target token", ("nll", "loss"), smooth=True),
    "rate": Panel("learning rate", "learning rate", ("learning_rate",)),
    "speed": Panel("speed", "target tokens a second of training", ("target_tokens_per_second",), smooth=True),
}
_TITLES = {"bleu": "BLEU of validation", "chrf": "chrF of validation",
           "loss": "loss of validation, nats a target token", "perplexity": "perplexity of validation"}


def _validation_panels(metric: str, scalars: set[str]) -> list[Panel]:
    """Return a panel for each validation set with this metric; the first set has no name."""
    pattern = re.compile(re.escape(METRICS[metric].scalar()) + "(?:/(.+))?")
    sets = sorted(match[1] or "" for name in scalars if (match := pattern.fullmatch(name)))
    return [Panel(metric, f"{_TITLES[metric]}{f' on {name}' if name else ''}", (METRICS[metric].scalar(name),),
                  mode_of(METRICS[metric].scalar(name))) for name in sets]


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` values, as means of equally many neighbours."""
    size = thinning(len(values), most)
    groups = [values[i:i + size] for i in range(0, len(values), size)]
    return [sum(group) / len(group) for group in groups] if size > 1 else list(values)


def thinning(count: int, most: int) -> int:
    """Return the number of neighbours in each mean of `thinned`; 1 if all values stay."""
    return max(1, -(-count // most))


def usual_window(runs: Sequence[RecordedRun]) -> int:
    """Return the default number of figures in a running mean, a fortieth of those of the longest run."""
    longest = max((len(run.values("learning_rate") or run.values("loss")) for run in runs), default=0)
    return odd_window(longest // _WINDOWS_PER_RUN)


def odd_window(window: int) -> int:
    """Return the window of a running mean, rounded up to an odd number so that it is symmetric."""
    return 2 * (window // 2) + 1


def running_means(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and its neighbours; near the ends the window is smaller but symmetric.

    Args:
        values: the values.
        window: number of values in a mean, rounded up to an odd number.
    """
    half = window // 2
    means = []
    for i in range(len(values)):
        reach = min(half, i, len(values) - 1 - i)
        near = values[i - reach:i + reach + 1]
        means.append(sum(near) / len(near))
    return means
