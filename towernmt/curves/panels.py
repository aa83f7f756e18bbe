"""What is drawn of runs: the panels, each of one scalar over one axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from towernmt.callbacks.validation.metrics import METRICS, mode_of
from towernmt.curves.recorded_run import RecordedRun, all_scalars
from towernmt.curves.totals import MINUTES, TOKENS

AXES = {"updates": ("global_step", "updates"), "tokens": (TOKENS, "target tokens"), "minutes": (MINUTES, "minutes")}
"""What the curves may be drawn over: the name in the rows, and the label."""
KINDS = ("loss", *(f"validation-{name}" for name in METRICS), "rate", "speed")
"""All kinds of panels."""
DEFAULT_KINDS = tuple(kind for kind in KINDS if kind != "validation-perplexity")
"""Perplexity is the validation loss on another scale."""
_POINTS_A_WINDOW = 40


@dataclass(frozen=True)
class Panel:
    """One picture of several.

    Attributes:
        name: for sentences.
        title: with the unit.
        scalars: what is drawn: of each run the first of these that it has.
        mode: which way is better, 'max' or 'min', where the best point is marked; "" elsewhere.
        smooth: whether running means are drawn.
    """

    name: str
    title: str
    scalars: tuple[str, ...]
    mode: str = ""
    smooth: bool = False

    def of(self, run: RecordedRun, axis: str) -> Curve:
        """The curve of a run.

        Args:
            axis: one of `AXES`.
        """
        scalar = next((name for name in self.scalars if name in run.scalars), "")
        place = AXES[axis][0]
        points = [(row[place], row[scalar]) for row in run.rows if scalar in row and place in row]
        return Curve([x for x, _ in points], [y for _, y in points])

    def best(self, curve: Curve) -> int | None:
        """The index of the best point, of equal ones the last, as validation has it; None where none is marked."""
        if not self.mode or not curve.y:
            return None
        best = (max if self.mode == "max" else min)(curve.y)
        return max(i for i, value in enumerate(curve.y) if value == best)


@dataclass(frozen=True)
class Curve:
    """Points of equal number of values along both axes; `x` rises."""

    x: list[float]
    y: list[float]


def panels(runs: Sequence[RecordedRun], kinds: Sequence[str] = DEFAULT_KINDS) -> list[Panel]:
    """The panels of which any run has something, in the order of the kinds.

    Args:
        kinds: of `KINDS`.
    """
    scalars = all_scalars(runs)
    found = []
    for kind in kinds:
        if kind.startswith("validation-"):
            found += _of_validation(kind.removeprefix("validation-"), scalars)
        else:
            found.append(_OF_TRAINING[kind])
    return [panel for panel in found if scalars & set(panel.scalars)]


def end_of(chosen: Sequence[Panel], runs: Sequence[RecordedRun], axis: str) -> float:
    """The furthest place of any curve, so that all panels have one axis; 1 where there is none."""
    return max((x for panel in chosen for run in runs for x in panel.of(run, axis).x[-1:]), default=0.0) or 1.0


_OF_TRAINING = {
    "loss": Panel("training loss", "training loss, nats a target token", ("nll", "loss"), smooth=True),
    "rate": Panel("learning rate", "learning rate", ("learning_rate",)),
    "speed": Panel("speed", "target tokens a second of training", ("target_tokens_per_second",), smooth=True),
}
_TITLES = {"bleu": "BLEU of validation", "chrf": "chrF of validation",
           "loss": "loss of validation, nats a target token", "perplexity": "perplexity of validation"}


def _of_validation(metric: str, scalars: set[str]) -> list[Panel]:
    """A panel for each validation set that a run has this metric of: the first of a run has no name."""
    pattern = re.compile(re.escape(METRICS[metric].scalar()) + "(?:/(.+))?")
    sets = sorted(match[1] or "" for name in scalars if (match := pattern.fullmatch(name)))
    return [Panel(metric, f"{_TITLES[metric]}{f' on {name}' if name else ''}", (METRICS[metric].scalar(name),),
                  mode_of(METRICS[metric].scalar(name))) for name in sets]


def thinned(values: Sequence[float], most: int) -> list[float]:
    """As many values as are wanted at most: the means of so many neighbours that it suffices."""
    size = thinning(len(values), most)
    groups = [values[i:i + size] for i in range(0, len(values), size)]
    return [sum(group) / len(group) for group in groups] if size > 1 else list(values)


def thinning(count: int, most: int) -> int:
    """How many neighbours `thinned` makes one value of; 1 where all stay."""
    return max(1, -(-count // most))


def usual_window(runs: Sequence[RecordedRun]) -> int:
    """How many logged figures a running mean takes, if nobody says: a fortieth of those of the longest run."""
    longest = max((len(run.values("learning_rate") or run.values("loss")) for run in runs), default=0)
    return odd_window(longest // _POINTS_A_WINDOW)


def odd_window(window: int) -> int:
    """The figures that a running mean takes: of an even number one more, so that there are as many on both sides."""
    return 2 * (window // 2) + 1


def running_means(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and its neighbours; near the ends of as many on both sides as there are.

    Args:
        window: values that are taken; of an even number, one more.
    """
    half = window // 2
    means = []
    for i in range(len(values)):
        reach = min(half, i, len(values) - 1 - i)
        near = values[i - reach:i + reach + 1]
        means.append(sum(near) / len(near))
    return means
