"""The figures of a training as text: all of them for a log, or as many as fit into a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment

Forms = tuple[str, ...]
"""One figure, from its longest form to its shortest."""
_LENGTHS = 4
_LONGEST_BAR, _SHORTEST_BAR = 30, 6


@dataclass
class Figures:
    """How far a training is, and how it goes.

    Attributes:
        step: updates so far.
        steps: the last update, if a number of updates ends the training.
        epoch: the present epoch, from 1.
        scalars: those of `Progress`; any may be missing.
        seconds_left: until the nearest limit; None without a limit.
        done: the finished share of the training, 0 to 1; None without a limit.
        seconds: of training so far.
    """

    step: int
    steps: int | None
    epoch: int
    scalars: Mapping[str, float]
    seconds_left: float | None
    done: float | None
    seconds: float

    def first(self) -> list[Forms]:
        """The most important figures: step, loss, speed, and the remaining time."""
        parts: list[Forms] = [(f"step {self.step}", f"step {self.step}", str(self.step), str(self.step))]
        name = "nll" if "nll" in self.scalars else "loss"
        if name in self.scalars:
            value = self.scalars[name]
            parts.append((f"{name} {value:.4f}", f"{name} {value:.3f}", *(f"{name} {value:.2f}",) * 2))
        parts.append(_speed(self.scalars))
        if self.seconds_left is not None:
            parts.append((f"ETA {duration(self.seconds_left)}",) * _LENGTHS)
        else:
            parts.append((f"for {duration(self.seconds)}",) * _LENGTHS)
        return parts

    def more(self) -> list[str]:
        """The other figures, the more important ones first."""
        scalars = self.scalars
        formats = [("perplexity", "perplexity {:.2f}"), ("learning_rate", "learning rate {:.3e}"),
                   ("gradient_norm", "gradient norm {:.3f}"),
                   *([("loss", "loss as trained {:.4f}")] if "nll" in scalars else []),
                   ("tokens_per_second", "{:,.0f} tokens/s with source")]
        parts = [text.format(scalars[name]) for name, text in formats if name in scalars]
        return [*parts, f"epoch {self.epoch}"]

    def line(self, width: int | None = None) -> str:
        """All figures, or those that fit into `width` columns; the first ones are shortened if necessary."""
        chosen = _shortened(self.first(), ", ", width)
        for part in self.more():
            if width is None or cell_len(", ".join([*chosen, part])) <= width:
                chosen.append(part)
        return ", ".join(chosen)


class Bar:
    """A line of a terminal for `Figures`: the figures that fit, and a bar if there is a limit and room for one."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(10, options.max_width - 1)      # some terminals wrap a line that is full
        step, *others = self.figures.first()
        if self.figures.steps:
            here = f"{self.figures.step}/{self.figures.steps}"
            step = (f"step {here}", f"step {here}", here, step[-1])
        chosen = _shortened([step, *others], "  ", width)
        bar = _bar_width(self.figures.done, chosen, width)
        for part in self.figures.more():
            if cell_len("  ".join([*chosen, part])) + (bar + 2 if bar else 0) <= width:
                chosen.append(part)
        if not bar or self.figures.done is None:
            yield Segment("  ".join(chosen)[:width])
            return
        yield Segment(f"{chosen[0]}  ")
        yield from console.render(ProgressBar(total=1.0, completed=self.figures.done, width=bar), options)
        yield Segment("  ".join(["", *chosen[1:]]))


def _bar_width(done: float | None, parts: list[str], width: int) -> int:
    """Columns that `parts` leave for the bar; 0 for no bar."""
    room = width - cell_len("  ".join(parts)) - 2
    return min(_LONGEST_BAR, room) if done is not None and room >= _SHORTEST_BAR else 0


def _shortened(parts: list[Forms], between: str, width: int | None) -> list[str]:
    """The longest forms that fit into `width` together; if even the shortest do not fit, the first ones of these."""
    for length in range(_LENGTHS):
        chosen = [forms[length] for forms in parts]
        if width is None or cell_len(between.join(chosen)) <= width:
            return chosen
    while len(chosen) > 1 and width is not None and cell_len(between.join(chosen)) > width:
        chosen.pop()
    return chosen


def _speed(scalars: Mapping[str, float]) -> Forms:
    if "target_tokens_per_second" in scalars:
        speed = scalars["target_tokens_per_second"]
        return (f"{speed:,.0f} target tokens/s", f"{speed:,.0f} tokens/s", f"{_thousands(speed)} tok/s",
                f"{_thousands(speed)}/s")
    speed = scalars.get("steps_per_second", 0.0)
    return (*(f"{speed:.2f} steps/s",) * 2, *(f"{speed:.1f}/s",) * 2)


def _thousands(value: float) -> str:
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.1f}k" if value < 100_000 else f"{value / 1000:.0f}k"


def duration(seconds: float) -> str:
    """Seconds as `1 d 02:03:04`, `1:02:03` or `2:03`."""
    whole = int(seconds + 0.5)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
