"""Report the progress of training: loss, perplexity, learning rate, speed and ETA, with a bar on terminals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tensorpack.utils import logger

from towernmt.callbacks.stateful import StatefulCallback, find_callbacks, saved_number, training_towers
from towernmt.callbacks.status_line import Bar, Figures, StatusLine, duration
from towernmt.callbacks.stopping import StopAfterMinutes, StopAtStep
from towernmt.callbacks.validation_metrics import perplexity_from_loss
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import TOKENS, graph_state, shares_batch, total_of_step
from towernmt.core.machine import peak_memory
from towernmt.core.tensors import Graph, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import current_world


class Progress(StatefulCallback):
    """Logs a line every `log_steps` updates, and puts the same figures as scalars; replaces tensorpack's `ProgressBar`.

    On a terminal, a bar below these lines is updated a few times per second. The figures are means over the interval,
    weighted by target tokens. Each step fetches, together with the update, `loss` and `nll` of all training towers, the
    tower inputs `target_tokens` and `source_length`, `gradient_norm` and `learning_rate`. Tensors that the graph does
    not have are left out, so the callback works with any tensorpack trainer.

    If a tower has `nll`, it is shown instead of `loss`, because it is without label smoothing, as in a validation.

    With several processes, loss and perplexity are those of the rows of this process, and the number of source tokens
    is an estimate from these rows.

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
        self._start_time: float | None = None
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

    @classmethod
    def saved_seconds(cls, states: Mapping[str, Any]) -> float | None:
        """Return the seconds of training in the states of a checkpoint; None if they are not known."""
        return saved_number(states, cls.state_key, "seconds")

    def _setup_graph(self) -> None:
        self._fetches = _find_tensors(self.trainer, self.graph)
        self._cycle = int(getattr(self.trainer, "update_cycle", 1))

    def _before_train(self) -> None:
        self._step_limits = find_callbacks(self.trainer, StopAtStep)
        self._time_limits = find_callbacks(self.trainer, StopAfterMinutes)
        self._first_step = self.global_step
        self._knows_totals = self._restored or self._first_step == 0
        self._run_seconds = 0.0
        self._interval = _Interval()
        self._last_interval: _Interval | None = None
        self._start_time = self._last_clock = self._clock()
        self._status.open()

    def _before_epoch(self) -> None:
        # If a run resumes within an epoch, steps_per_epoch is the rest of that epoch.
        self._epoch_end = self.global_step + self.trainer.steps_per_epoch
        self._steps_per_epoch = getattr(self.trainer.loop, "_steps_per_epoch", self.trainer.steps_per_epoch)
        self._last_clock = self._clock()

    def _before_run(self, _: Any) -> Any:
        return tf1.train.SessionRunArgs(self._fetches)

    def _after_run(self, _: Any, values: Any) -> None:
        seconds = self._clock() - self._last_clock
        self._last_clock = self._clock()
        tokens = self._interval.add(values.results, seconds, self._cycle)
        self._target_total += tokens
        self._run_seconds += seconds
        # tensorpack's step counter acts first, so global_step already counts this update.
        if self.global_step % self._log_steps == 0:
            self._report()
        elif self._status.due():
            is_noisy = self._interval.steps < self._log_steps / 4       # a mean of few batches
            interval = self._last_interval if is_noisy and self._last_interval else self._interval
            self._status.show(Bar(self._figures(interval)))

    def _trigger_step(self) -> None:
        self._last_clock = self._clock()    # the callbacks before this one have acted: their time does not count

    def _report(self) -> None:
        self._record_scalars(self._interval.scalars())
        figures = self._figures(self._interval)
        self._last_interval, self._interval = self._interval, _Interval()
        logger.info(figures.line(), extra={"short": figures.line})
        self._status.show(Bar(figures))

    def _record_scalars(self, scalars: dict[str, float]) -> None:
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
        return 0.0 if self._start_time is None else self._clock() - self._start_time

    def _figures(self, interval: _Interval) -> Figures:
        seconds_left, limit = self._nearest_limit()
        fraction_done = None if seconds_left is None else self._spent / max(self._spent + seconds_left, 1e-9)
        return Figures(self.global_step, limit, self.epoch_num, interval.scalars(), seconds_left, fraction_done,
                       self._elapsed)

    @property
    def _spent(self) -> float:
        """Seconds of training, assuming that steps before the resume took as long as those after it."""
        steps_done = self.global_step - self._first_step
        return self._elapsed * self.global_step / steps_done if steps_done > 0 else 0.0

    def _nearest_limit(self) -> tuple[float | None, int | None]:
        """Return the seconds until the nearest limit, callbacks included, and the last update if that is the limit."""
        steps_done = self.global_step - self._first_step
        if steps_done <= 0:
            return None, None
        seconds_per_step = self._elapsed / steps_done
        ends: list[int] = [limit.steps for limit in self._step_limits]
        epochs_left = self.trainer.max_epoch - self.epoch_num
        if epochs_left < _NO_LIMIT_EPOCHS:
            ends.append(self._epoch_end + epochs_left * self._steps_per_epoch)
        limits: list[tuple[float, int | None]] = [((end - self.global_step) * seconds_per_step, end) for end in ends]
        limits += [(60 * limit.minutes - limit.elapsed_seconds, None) for limit in self._time_limits]
        if self._expected_end:
            limits.append(((self._expected_end - self.global_step) * seconds_per_step, None))
        if not limits:
            return None, None
        seconds, end = min(limits, key=lambda entry: entry[0])
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
            self._record_scalars({})
        if self._knows_totals:
            self.restore_state(self.state())    # the callback may be used for further training
        self._target_total, self._start_time = 0.0, None


_NO_LIMIT_EPOCHS = 9999
"""A larger `max_epoch` means that epochs are not limited (tensorpack's default is 99999)."""


class _Interval:
    """Sums over the updates between two lines."""

    def __init__(self) -> None:
        self._weight = self._seconds = self._target = self._source = 0.0
        self.steps = 0
        self._sums: dict[str, float] = {}
        self._latest_values: dict[str, float] = {}

    def add(self, values: dict[str, Any], seconds: float, cycle: int) -> float:
        """Add one update, and return its target tokens (0 if they are not known)."""
        target = float(values.get("target_tokens", 0.0)) * cycle
        weight = target or 1.0
        is_applied = not values.get("skipped", False)
        for name in ("loss", "nll"):
            if name in values and is_applied:
                self._sums[name] = self._sums.get(name, 0.0) + float(values[name]) * weight
        for name in ("learning_rate", "gradient_norm"):
            if name in values and (is_applied or name == "learning_rate"):
                self._latest_values[name] = float(values[name])
        self._weight += weight * is_applied
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
        result.update(self._latest_values)
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
            # If processes share a batch, `target_tokens` are those of all of them, and each has an equal share of rows.
            processes = current_world().processes if shares_batch(towers[0]) else 1
            tensors["source_tokens"] = tf.add_n([tf.reduce_sum(length) for length in lengths]) * processes
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
