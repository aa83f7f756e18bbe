"""Report the progress of training: loss, perplexity, learning rate, speed and ETA, with a bar on terminals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from tensorpack.utils import logger

from towernmt.callbacks.stateful import StatefulCallback, find_callbacks, training_towers
from towernmt.callbacks.stopping import StopAfterMinutes, StopAtStep
from towernmt.callbacks.validation_metrics import perplexity_from_loss
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import TOKENS, graph_state, total_of_step
from towernmt.core.machine import peak_memory
from towernmt.core.standard_streams import redirect_to_null_device
from towernmt.core.tensors import Graph, Tensor
from towernmt.core.terminal_log import terminal_handlers
from towernmt.core.tf_compat import tf, tf1

Forms = tuple[str, ...]
"""The texts of one figure, from the longest to the shortest."""
_LENGTHS = 4
_LONGEST_BAR, _SHORTEST_BAR = 30, 6


@dataclass
class Figures:
    """The state of training, as text for the log and the terminal.

    Attributes:
        step: updates so far.
        steps: the last update, if the number of updates is limited.
        epoch: the current epoch, from 1.
        scalars: the scalars of `Progress`; any may be missing.
        seconds_left: seconds until the nearest limit; None without a limit.
        done: the finished share of training, 0 to 1; None without a limit.
        seconds: seconds of training so far.
    """

    step: int
    steps: int | None
    epoch: int
    scalars: Mapping[str, float]
    seconds_left: float | None
    done: float | None
    seconds: float

    def first(self) -> list[Forms]:
        """Return the most important figures: step, loss, speed, and the remaining time."""
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
        """Return the other figures, the most important first."""
        scalars = self.scalars
        formats = [("perplexity", "perplexity {:.2f}"), ("learning_rate", "learning rate {:.3e}"),
                   ("gradient_norm", "gradient norm {:.3f}"),
                   *([("loss", "loss as trained {:.4f}")] if "nll" in scalars else []),
                   ("tokens_per_second", "{:,.0f} tokens/s with source")]
        parts = [text.format(scalars[name]) for name, text in formats if name in scalars]
        return [*parts, f"epoch {self.epoch}"]

    def line(self, width: int | None = None) -> str:
        """Return all figures, or those that fit into `width` columns, with the first ones shortened if necessary."""
        chosen = _shortened(self.first(), ", ", width)
        for part in self.more():
            if width is None or cell_len(", ".join([*chosen, part])) <= width:
                chosen.append(part)
        return ", ".join(chosen)


class Bar:
    """A terminal line of `Figures`: those that fit, and a bar if training has a limit and the width allows it."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(10, options.max_width - 1)      # some terminals wrap a full line
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
    """Return the columns that `parts` leave for the bar; 0: no bar."""
    columns = width - cell_len("  ".join(parts)) - 2
    return min(_LONGEST_BAR, columns) if done is not None and columns >= _SHORTEST_BAR else 0


def _shortened(parts: list[Forms], between: str, width: int | None) -> list[str]:
    """Return the longest forms that fit into `width` together, or as many of the shortest as fit."""
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
    """Return seconds as `1 d 02:03:04`, `1:02:03` or `2:03`."""
    whole = int(seconds + 0.5)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
        self._moved: list[tuple[Any, Any]] = []

    @property
    def active(self) -> bool:
        return _can_move_its_cursor(self._out)

    @property
    def _out(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stdout

    @property
    def width(self) -> int:
        """Current width of the terminal, in columns."""
        return self._console.width if self._live else 80

    def open(self) -> None:
        """Start to show the line; the log then goes above it."""
        if not self.active or self._live:
            return
        stdout = self._out is sys.stdout
        self._console = _Console(file=self._out, force_terminal=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=stdout,
                          redirect_stderr=stdout and _can_move_its_cursor(sys.stderr))
        handlers = [handler for handler in terminal_handlers() if handler.stream is self._out]
        self._live.start()
        self._moved = [(handler, handler.setStream(sys.stdout)) for handler in handlers if stdout]

    def close(self) -> None:
        """Remove the line, and leave the cursor on an empty line."""
        if self._live is None:
            return
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()
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


class Progress(StatefulCallback):
    """Logs a line every `log_steps` updates, and puts the same figures as scalars; replaces tensorpack's `ProgressBar`.

    On a terminal, a bar below these lines is updated a few times per second. The figures are means over the interval,
    weighted by target tokens. Each step fetches, together with the update, `loss` and `nll` of all training towers, the
    tower inputs `target_tokens` and `source_length`, `gradient_norm` and `learning_rate`. Tensors that the graph does
    not have are left out, so the callback works with any tensorpack trainer.

    If a tower has `nll`, it is shown instead of `loss`, because it is without label smoothing, as in a validation.

    With an update cycle of K, only the last of the K batches is fetched: loss and perplexity are those of that batch,
    and its tokens are counted K times. Loss, perplexity and gradient norm ignore skipped updates (float16 overflows),
    for which they may not be finite.

    The speed does not include the time of the callbacks before this one. Put it after the validator and the saver, so
    that tokens/s is the speed of training alone.

    Scalars of an interval: `loss` (the optimised cost), `nll` (mean negative log-likelihood of a target token in nats),
    `perplexity` (exp of `nll`), `learning_rate`, `gradient_norm`, `target_tokens_per_second`, `tokens_per_second`
    (source and target) and `steps_per_second`. Scalars of the run, resumes included: `target_tokens_trained`, and
    `minutes_trained` with validation and saving. The work of a killed run after its last checkpoint is not counted,
    because the resumed run repeats it. A run resumed from a checkpoint without these totals does not report them.

    Args:
        log_steps: updates between lines.
        clock: a function that returns seconds.
        status: the line of the bar; None: on the terminal, if standard output is one.
        expected_end: estimated last update if the data ends training; 0: not known.

    Raises:
        SettingsError: `log_steps` is below 1.
    """

    state_key = "progress"

    def __init__(self, log_steps: int = 50, clock: Callable[[], float] = time.monotonic,
                 status: StatusLine | None = None, expected_end: int = 0) -> None:
        if log_steps < 1:
            raise SettingsError(f"log.steps={log_steps} must be at least 1.")
        self._log_steps, self._clock, self._expected_end = log_steps, clock, expected_end
        self._status = status if status is not None else StatusLine()
        self._began: float | None = None
        self._tokens_before = self._seconds_before = self._target_total = 0.0
        self._restored = False
        self._knows_totals = True

    def state(self) -> dict[str, Any]:
        if not self._knows_totals:
            return {}
        return {"target_tokens": self._tokens_before + self._target_total,
                "seconds": self._seconds_before + self._elapsed}

    def restore_state(self, state: dict[str, Any]) -> None:
        if state:
            self._tokens_before, self._seconds_before = float(state["target_tokens"]), float(state["seconds"])
            self._restored = True

    def _setup_graph(self) -> None:
        self._fetches = _find_tensors(self.trainer, self.graph)
        self._cycle = int(getattr(self.trainer, "update_cycle", 1))

    def _before_train(self) -> None:
        self._limits = find_callbacks(self.trainer, StopAtStep)
        self._clocks = find_callbacks(self.trainer, StopAfterMinutes)
        self._first_step = self.global_step
        self._knows_totals = self._restored or self._first_step == 0
        self._run_seconds = 0.0
        self._interval = _Interval()
        self._last: _Interval | None = None
        self._began = self._resumed = self._clock()
        self._status.open()

    def _before_epoch(self) -> None:
        # If a run resumes within an epoch, steps_per_epoch is the rest of that epoch.
        self._epoch_end = self.global_step + self.trainer.steps_per_epoch
        self._steps_per_epoch = getattr(self.trainer.loop, "_steps_per_epoch", self.trainer.steps_per_epoch)
        self._resumed = self._clock()

    def _before_run(self, _: Any) -> Any:
        return tf1.train.SessionRunArgs(self._fetches)

    def _after_run(self, _: Any, values: Any) -> None:
        seconds = self._clock() - self._resumed
        self._resumed = self._clock()
        tokens = self._interval.add(values.results, seconds, self._cycle)
        self._target_total += tokens
        self._run_seconds += seconds
        # tensorpack's step counter acts first, so global_step already counts this update.
        if self.global_step % self._log_steps == 0:
            self._report()
        elif self._status.due():
            few = self._interval.steps * 4 < self._log_steps      # the mean of few batches is too noisy
            self._status.show(Bar(self._figures(self._last if few and self._last else self._interval)))

    def _trigger_step(self) -> None:
        self._resumed = self._clock()

    def _report(self) -> None:
        self._put(self._interval.scalars())
        figures = self._figures(self._interval)
        self._last, self._interval = self._interval, _Interval()
        logger.info(figures.line(), extra={"short": figures.line})
        self._status.show(Bar(figures))

    def _put(self, scalars: dict[str, float]) -> None:
        totals = self.state()
        if totals.get("target_tokens"):
            scalars = {**scalars, "target_tokens_trained": totals["target_tokens"]}
        if totals:
            scalars = {**scalars, "minutes_trained": totals["seconds"] / 60}
        for name, value in scalars.items():
            self.trainer.monitors.put_scalar(name, value)

    @property
    def _elapsed(self) -> float:
        """Seconds since training started or resumed."""
        return 0.0 if self._began is None else self._clock() - self._began

    def _figures(self, interval: _Interval) -> Figures:
        left, limit = self._nearest_limit()
        done = None if left is None else self._spent / max(self._spent + left, 1e-9)
        return Figures(self.global_step, limit, self.epoch_num, interval.scalars(), left, done, self._elapsed)

    @property
    def _spent(self) -> float:
        """Seconds of training, assuming that steps before the resume took as long as those after it."""
        done = self.global_step - self._first_step
        return self._elapsed * self.global_step / done if done > 0 else 0.0

    def _nearest_limit(self) -> tuple[float | None, int | None]:
        """Return the seconds until the nearest limit, callbacks included, and the last update if that is the limit."""
        done = self.global_step - self._first_step
        if done <= 0:
            return None, None
        a_step = self._elapsed / done
        ends: list[int] = [limit.steps for limit in self._limits]
        epochs_left = self.trainer.max_epoch - self.epoch_num
        if epochs_left < _NO_LIMIT_EPOCHS:
            ends.append(self._epoch_end + epochs_left * self._steps_per_epoch)
        left: list[tuple[float, int | None]] = [((end - self.global_step) * a_step, end) for end in ends]
        left += [(60 * clock.minutes - clock.elapsed_seconds, None) for clock in self._clocks]
        if self._expected_end:
            left.append(((self._expected_end - self.global_step) * a_step, None))
        if not left:
            return None, None
        seconds, end = min(left, key=lambda entry: entry[0])
        return max(0.0, seconds), end

    def _after_train(self) -> None:
        self._status.close()
        steps = self.global_step - self._first_step
        total = self._elapsed
        text = f"Trained {steps} steps in {duration(total)}"
        if self._target_total and self._run_seconds:
            text += (f": {self._target_total:,.0f} target tokens, "
                     f"{self._target_total / self._run_seconds:,.0f} per second of training")
        memory = peak_memory()
        if memory:
            text += f"; at most {memory / 1e9:.1f} GB of memory"
        logger.info(f"{text}; the last step is {self.global_step}.")
        if self._interval.steps:    # the last steps have not been logged
            self._put({})
        if self._knows_totals:
            self.restore_state(self.state())    # the callback may be used for further training
        self._target_total, self._began = 0.0, None


_NO_LIMIT_EPOCHS = 9999
"""A larger `max_epoch` means that epochs are not limited (tensorpack's default is 99999)."""


class _Interval:
    """Sums over the updates between two lines."""

    def __init__(self) -> None:
        self._weight = self._seconds = self._target = self._source = 0.0
        self.steps = 0
        self._sums: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def add(self, values: dict[str, Any], seconds: float, cycle: int) -> float:
        """Add one update, and return its target tokens (0 if they are not known)."""
        target = float(values.get("target_tokens", 0.0)) * cycle
        weight = target or 1.0
        made = not values.get("skipped", False)
        for name in ("loss", "nll"):
            if name in values and made:
                self._sums[name] = self._sums.get(name, 0.0) + float(values[name]) * weight
        for name in ("learning_rate", "gradient_norm"):
            if name in values and (made or name == "learning_rate"):
                self._last[name] = float(values[name])
        self._weight += weight * made
        self._seconds += seconds
        self._target += target
        self._source += float(values.get("source_tokens", 0.0)) * cycle
        self.steps += 1
        return target

    def scalars(self) -> dict[str, float]:
        means = {name: total / self._weight for name, total in self._sums.items()}
        seconds = max(self._seconds, 1e-9)
        result = {"loss": means["loss"]} if "loss" in means else {}
        if "nll" in means:
            result["nll"] = means["nll"]
            result["perplexity"] = perplexity_from_loss(means["nll"])
        result.update(self._last)
        if self._target:
            result["target_tokens_per_second"] = self._target / seconds
            if self._source:
                result["tokens_per_second"] = (self._target + self._source) / seconds
        result["steps_per_second"] = self.steps / seconds
        return result


def _find_tensors(trainer: Any, graph: Graph) -> dict[str, Tensor]:
    """Return the existing tensors among those that `Progress` fetches, by scalar name."""
    towers = training_towers(trainer)
    tensors: dict[str, Tensor] = {}
    for name in ("loss", "nll"):
        costs = [t for t in (_tower_tensor(tower, name) for tower in towers) if t is not None]
        if costs and all(t.shape.rank == 0 for t in costs):
            tensors[name] = tf.add_n(costs) / len(costs) if len(costs) > 1 else costs[0]
    if towers:
        if _tower_tensor(towers[0], TOKENS) is not None:
            tensors[TOKENS] = total_of_step(towers)
        lengths = [t for t in (_tower_tensor(tower, "source_length") for tower in towers) if t is not None]
        if lengths:
            tensors["source_tokens"] = tf.add_n([tf.reduce_sum(length) for length in lengths])
    for variable in tf1.global_variables():
        if variable.op.name == "learning_rate":
            tensors["learning_rate"] = variable.value()
    for operation in graph.get_operations():
        if operation.name.split("/")[-1] == "gradient_norm" and operation.outputs:
            tensors["gradient_norm"] = operation.outputs[0]
            break
    skipped = graph_state(graph).update_skipped
    if skipped is not None:
        tensors["skipped"] = skipped
    return tensors


def _tower_tensor(tower: Any, name: str) -> Tensor | None:
    try:
        return tower.get_tensor(name)
    except KeyError:
        return None
