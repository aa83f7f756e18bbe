"""How training goes: loss, perplexity, learning rate, tokens per second and the time that is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from tensorpack.callbacks import Callback
from tensorpack.utils import logger

from towernmt.callbacks.limits import StopAfterMinutes, StopAtStep
from towernmt.callbacks.nan_guard import FORGIVEN
from towernmt.callbacks.status_line import StatusLine
from towernmt.callbacks.surroundings import find_callbacks, training_towers
from towernmt.errors import SettingsError
from towernmt.peak_memory import peak_memory
from towernmt.tf_compat import tf, tf1


class Progress(Callback):
    """One line every `log_steps` updates, and the same as scalars; replaces tensorpack's `ProgressBar`.

    On a terminal a single line overwrites itself, and only the log file gets the lines. The numbers are
    means over the interval, weighted by target tokens. Each step fetches, with the update: `loss` and
    `nll` of all training towers, the tower inputs `target_tokens` and `source_length`, `gradient_norm`
    and `learning_rate`; what the graph does not have is left out, so that it serves any tensorpack trainer.

    With an update cycle of K the hooked run of a step holds the last of its K batches: loss and perplexity
    are those of that batch, and tokens are counted as K times its tokens. Loss, perplexity and gradient norm leave out
    updates that were skipped (in float16, where they overflow), which may have had none.

    The speed leaves out the time that the callbacks before this one take after a step. Stand behind the
    validator and the saver, and tokens/s is the speed of training itself.

    Scalars: `loss`, `perplexity`, `learning_rate`, `gradient_norm`, `target_tokens_per_second`,
    `tokens_per_second` (source and target), `steps_per_second`.
    """

    def __init__(self, log_steps: int = 50, clock: Callable[[], float] = time.monotonic,
                 status: StatusLine | None = None) -> None:
        """
        Args:
            log_steps: updates between lines.
            clock: a function that gives seconds.
            status: where the self-overwriting line goes; by default the terminal, if there is one.
        Raises:
            SettingsError: `log_steps` is below 1.
        """
        if log_steps < 1:
            raise SettingsError(f"train.log_steps={log_steps} must be at least 1.")
        self._log_steps, self._clock = log_steps, clock
        self._status = status if status is not None else StatusLine()

    def _setup_graph(self) -> None:
        self._fetches = _find_tensors(self.trainer, self.graph)
        self._cycle = int(getattr(self.trainer, "update_cycle", 1))

    def _before_train(self) -> None:
        self._limits = find_callbacks(self.trainer, StopAtStep)
        self._clocks = find_callbacks(self.trainer, StopAfterMinutes)
        self._first_step = self.global_step
        self._target_total = self._run_seconds = 0.0
        self._interval = _Interval()
        self._began = self._resumed = self._clock()
        self._status.open()

    def _before_epoch(self) -> None:
        # A loop that resumes in mid-epoch gives the rest of that epoch as steps_per_epoch.
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
        # The step counter of tensorpack stands first, so global_step counts this update already.
        if self.global_step % self._log_steps == 0:
            self._report()
            self._interval = _Interval()
        elif self._status.active:
            self._status.show(self._line())

    def _trigger_step(self) -> None:
        self._resumed = self._clock()

    def _report(self) -> None:
        for name, value in self._interval.scalars().items():
            self.trainer.monitors.put_scalar(name, value)
        line = self._line()
        if self._status.active:
            self._status.show(line, always=True)
            self._status.log_to_files(logger._logger, line)
        else:
            logger.info(line)

    def _line(self) -> str:
        scalars = self._interval.scalars()
        parts = [f"step {self.global_step}", f"epoch {self.epoch_num}"]
        formats = [("loss", "loss {:.4f}"), ("perplexity", "perplexity {:.2f}"),
                   ("learning_rate", "learning rate {:.3e}"), ("gradient_norm", "gradient norm {:.3f}")]
        parts += [text.format(scalars[name]) for name, text in formats if name in scalars]
        if "tokens_per_second" in scalars:
            parts.append(f"{scalars['target_tokens_per_second']:,.0f} target tokens/s "
                         f"({scalars['tokens_per_second']:,.0f} with source)")
        elif "target_tokens_per_second" in scalars:
            parts.append(f"{scalars['target_tokens_per_second']:,.0f} target tokens/s")
        else:
            parts.append(f"{scalars['steps_per_second']:.2f} steps/s")
        left = self._seconds_left()
        if left is not None:
            parts.append(f"ETA {duration(left)}")
        return ", ".join(parts)

    def _seconds_left(self) -> float | None:
        """Until the nearest limit; callbacks' time included."""
        done = self.global_step - self._first_step
        if done <= 0:
            return None
        a_step = (self._clock() - self._began) / done
        left = [(limit.steps - self.global_step) * a_step for limit in self._limits]
        left += [60 * clock.minutes - clock.elapsed_seconds for clock in self._clocks]
        epochs_left = self.trainer.max_epoch - self.epoch_num
        if epochs_left < _NO_LIMIT_EPOCHS:
            left.append((epochs_left * self._steps_per_epoch + self._epoch_end - self.global_step) * a_step)
        return max(0.0, min(left)) if left else None

    def _after_train(self) -> None:
        self._status.close()
        steps = self.global_step - self._first_step
        total = self._clock() - self._began
        text = f"Trained {steps} steps in {duration(total)}"
        if self._target_total and self._run_seconds:
            text += (f": {self._target_total:,.0f} target tokens, "
                     f"{self._target_total / self._run_seconds:,.0f} a second of training")
        memory = peak_memory()
        if memory:
            text += f"; at most {memory / 1e9:.1f} GB of memory"
        logger.info(f"{text}; the last step is {self.global_step}.")


_NO_LIMIT_EPOCHS = 9999
"""More epochs than this (tensorpack's default is 99999) stand for no limit."""


class _Interval:
    """Sums over the updates between two lines."""

    def __init__(self) -> None:
        self._weight = self._seconds = self._target = self._source = 0.0
        self._steps = 0
        self._sums: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def add(self, values: dict[str, Any], seconds: float, cycle: int) -> float:
        """Count one update; returns its target tokens (0 if they are not known)."""
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
        self._steps += 1
        return target

    def scalars(self) -> dict[str, float]:
        means = {name: total / self._weight for name, total in self._sums.items()}
        seconds = max(self._seconds, 1e-9)
        result = {"loss": means["loss"]} if "loss" in means else {}
        if "nll" in means:
            result["perplexity"] = perplexity(means["nll"])
        result.update(self._last)
        if self._target:
            result["target_tokens_per_second"] = self._target / seconds
            if self._source:
                result["tokens_per_second"] = (self._target + self._source) / seconds
        result["steps_per_second"] = self._steps / seconds
        return result


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood of a token (nats); infinite where that overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def duration(seconds: float) -> str:
    """Seconds as `1 d 02:03:04`, `1:02:03` or `2:03`."""
    whole = int(seconds + 0.5)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _find_tensors(trainer: Any, graph: Any) -> dict[str, Any]:
    """Scalar tensors by the names of `Progress`, as far as they exist."""
    towers = training_towers(trainer)
    found: dict[str, Any] = {}
    for name in ("loss", "nll"):
        tensors = [t for t in (_tower_tensor(tower, name) for tower in towers) if t is not None]
        if tensors and all(t.shape.rank == 0 for t in tensors):
            found[name] = tf.add_n(tensors) / len(tensors) if len(tensors) > 1 else tensors[0]
    if towers:
        target = _tower_tensor(towers[0], "target_tokens")
        if target is not None:
            found["target_tokens"] = target
        lengths = [t for t in (_tower_tensor(tower, "source_length") for tower in towers) if t is not None]
        if lengths:
            found["source_tokens"] = tf.add_n([tf.reduce_sum(length) for length in lengths])
    for variable in tf1.global_variables():
        if variable.op.name == "learning_rate":
            found["learning_rate"] = variable.value()
    for operation in graph.get_operations():
        if operation.name.split("/")[-1] == "gradient_norm" and operation.outputs:
            found["gradient_norm"] = operation.outputs[0]
            break
    for skipped in graph.get_collection(FORGIVEN)[:1]:
        found["skipped"] = skipped
    return found


def _tower_tensor(tower: Any, name: str) -> Any:
    try:
        return tower.get_tensor(name)
    except KeyError:
        return None
