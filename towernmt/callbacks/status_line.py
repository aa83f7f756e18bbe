"""The figures of training as text, and the line of a terminal that shows them with a bar."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment

from towernmt.core.standard_streams import redirect_to_null_device
from towernmt.core.terminal_log import terminal_handlers

Forms = tuple[str, ...]
"""The `_FORMS` texts of one figure, from the longest to the shortest."""
_FORMS = 4
_LONGEST_BAR, _SHORTEST_BAR = 30, 6     # columns


@dataclass
class Figures:
    """The state of training, as text for the log and the terminal.

    Attributes:
        step: updates so far.
        steps: the last update, if the number of updates is limited.
        epoch: the current epoch, from 1.
        scalars: the scalars of `Progress`; any may be missing.
        seconds_left: seconds until the nearest limit; None without a limit.
        fraction_done: the finished share of training, 0 to 1; None without a limit.
        seconds: seconds of training so far.
    """

    step: int
    steps: int | None
    epoch: int
    scalars: Mapping[str, float]
    seconds_left: float | None
    fraction_done: float | None
    seconds: float

    def main_figures(self) -> list[Forms]:
        """Return the most important figures: step, loss, speed, and the remaining time."""
        figures: list[Forms] = [(f"step {self.step}", f"step {self.step}", str(self.step), str(self.step))]
        name = "nll" if "nll" in self.scalars else "loss"
        if name in self.scalars:
            value = self.scalars[name]
            figures.append((f"{name} {value:.4f}", f"{name} {value:.3f}", *(f"{name} {value:.2f}",) * 2))
        figures.append(_speed(self.scalars))
        if self.seconds_left is not None:
            figures.append((f"ETA {duration(self.seconds_left)}",) * _FORMS)
        else:
            figures.append((f"for {duration(self.seconds)}",) * _FORMS)
        return figures

    def further_figures(self) -> list[str]:
        """Return the other figures, the most important first."""
        scalars = self.scalars
        formats = [("perplexity", "perplexity {:.2f}"), ("learning_rate", "learning rate {:.3e}"),
                   ("gradient_norm", "gradient norm {:.3f}"),
                   *([("loss", "loss as trained {:.4f}")] if "nll" in scalars else []),
                   ("tokens_per_second", "{:,.0f} tokens/s with source")]
        figures = [text.format(scalars[name]) for name, text in formats if name in scalars]
        return [*figures, f"epoch {self.epoch}"]

    def line(self, width: int | None = None) -> str:
        """Return all figures, or those that fit into `width` columns, with the first ones shortened if necessary."""
        texts = _shortened(self.main_figures(), ", ", width)
        for figure in self.further_figures():
            if width is None or cell_len(", ".join([*texts, figure])) <= width:
                texts.append(figure)
        return ", ".join(texts)


class Bar:
    """A terminal line of `Figures`: those that fit, and a bar if training has a limit and the width allows it."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(10, options.max_width - 1)      # some terminals wrap a full line
        step, *further_figures = self.figures.main_figures()
        if self.figures.steps:
            progress = f"{self.figures.step}/{self.figures.steps}"
            step = (f"step {progress}", f"step {progress}", progress, step[-1])
        texts = _shortened([step, *further_figures], "  ", width)
        bar = _bar_width(self.figures.fraction_done, texts, width)
        for figure in self.figures.further_figures():
            if cell_len("  ".join([*texts, figure])) + (bar + 2 if bar else 0) <= width:
                texts.append(figure)
        if not bar or self.figures.fraction_done is None:
            yield Segment("  ".join(texts)[:width])
            return
        yield Segment(f"{texts[0]}  ")
        yield from console.render(ProgressBar(total=1.0, completed=self.figures.fraction_done, width=bar), options)
        yield Segment("  ".join(["", *texts[1:]]))


def _bar_width(fraction_done: float | None, texts: list[str], width: int) -> int:
    """Return the columns that `texts` leave for the bar; 0: no bar."""
    columns = width - cell_len("  ".join(texts)) - 2
    return min(_LONGEST_BAR, columns) if fraction_done is not None and columns >= _SHORTEST_BAR else 0


def _shortened(figures: list[Forms], separator: str, width: int | None) -> list[str]:
    """Return the longest forms that fit into `width` together, or as many of the shortest as fit."""
    for length in range(_FORMS):
        texts = [forms[length] for forms in figures]
        if width is None or cell_len(separator.join(texts)) <= width:
            return texts
    while len(texts) > 1 and width is not None and cell_len(separator.join(texts)) > width:
        texts.pop()
    return texts


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
    """Return seconds as `1 d 02:03:04`, `1:02:03` or `2:03`."""
    total_minutes, second = divmod(int(seconds + 0.5), 60)
    total_hours, minute = divmod(total_minutes, 60)
    days, hour = divmod(total_hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


class StatusLine:
    """Keeps one line at the bottom of the terminal; other output goes above it.

    Args:
        stream: the terminal stream of the log; None: standard output.
        every_seconds: minimum time between two updates.

    Attributes:
        active: whether the terminal can move its cursor; if not, nothing is written.
    """

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 0.4) -> None:
        self._stream, self._every_seconds, self._shown_at = stream, every_seconds, 0.0
        self._live: Live | None = None
        self._moved_handlers: list[tuple[Any, Any]] = []       # with their previous streams

    @property
    def active(self) -> bool:
        return _can_move_its_cursor(self._out)

    @property
    def _out(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stdout

    def open(self) -> None:
        """Start to show the line; the log then goes above it."""
        if not self.active or self._live:
            return
        stdout = self._out is sys.stdout
        console = _Console(file=self._out, force_terminal=True, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=stdout,
                          redirect_stderr=stdout and _can_move_its_cursor(sys.stderr))
        handlers = [handler for handler in terminal_handlers() if handler.stream is self._out]
        self._live.start()
        self._moved_handlers = [(handler, handler.setStream(sys.stdout)) for handler in handlers if stdout]

    def close(self) -> None:
        """Remove the line, and leave the cursor on an empty line."""
        if self._live is None:
            return
        for handler, stream in self._moved_handlers:
            handler.setStream(stream)
        self._moved_handlers.clear()
        self._live.stop()
        self._live = None

    def due(self) -> bool:
        """Return whether the line is shown and should be replaced now."""
        return self._live is not None and time.monotonic() - self._shown_at >= self._every_seconds

    def show(self, line: RenderableType) -> None:
        """Replace the line on the terminal."""
        if self._live is None:
            return
        try:
            self._live.update(line, refresh=True)
            self._shown_at = time.monotonic()
        except OSError:     # the terminal is closed, but training continues
            redirect_to_null_device(self._out)


class _Console(Console):
    """A console that leaves the cursor visible, because a killed process could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


def _can_move_its_cursor(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM", "") not in ("dumb", "unknown")
