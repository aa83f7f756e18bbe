"""Monitors that record scalars in TensorBoard's event files and in `stats.jsonl`, and the bases of other monitors.

tensorpack's own writers raise an error (or print a stack trace) when the disk is full. These monitors log one warning
that nothing more is recorded, and training continues.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tensorpack.callbacks.monitor import MonitorBase
from tensorpack.utils import logger

from towernmt.callbacks.summaries import charts, hyper_parameters, settings_table, text_summary
from towernmt.core.errors import mask_text
from towernmt.core.files import write_text
from towernmt.core.tf_compat import tf, tf1

# TensorFlow's file writers raise IndexError for "file too large".
_FAILURES = (OSError, IndexError, RuntimeError, tf.errors.OpError)


CHARTS = {
    "loss of a target token, without label smoothing (nats)": ["nll$", "validation_loss(/.*)?$"],
    "perplexity": ["perplexity$", "validation_perplexity(/.*)?$"],
}
"""TensorBoard charts of training and validation together: title to regular expressions of tags."""


class Recorder(MonitorBase):
    """A monitor of the chief. Its first failure is logged, and then it records nothing more.

    Args:
        name: name for the warning.
        failures: exceptions that are failures.
    """

    _chief_only = True

    def __init__(self, name: str, failures: tuple[type[Exception], ...]) -> None:
        self._name, self._failures, self._has_failed = name, failures, False

    def _write(self, action: Callable[[], Any]) -> None:
        if self._has_failed:
            return
        try:
            action()
        except self._failures as error:
            self._has_failed = True
            logger.warning(f"{self._name} records nothing more ({first_line(error)}).")


def first_line(error: Exception) -> str:
    """Return the first line of the message of an exception, or its class if it has no message.

    Secrets are masked, because the message of a tracker may quote the URI of its server.
    """
    return mask_text((str(error).strip() or type(error).__name__).splitlines()[0])


class StepRecorder(Recorder):
    """A monitor that records all scalars of a step together, at the end of the step.

    Scalars before the first update, such as those of a validation, are recorded for step 0.
    """

    def _setup_graph(self) -> None:
        self._pending: dict[str, Any] = {}
        self._step = 0      # of these scalars

    @abstractmethod
    def _record(self, scalars: dict[str, Any], step: int) -> None:
        """Record the scalars of a step."""

    def process_scalar(self, name: str, val: Any) -> None:
        """Keep a scalar until the end of its step."""
        if self._step != self.global_step:
            self._add()
        self._step = self.global_step
        self._pending[name] = val

    def _trigger_step(self) -> None:
        self._add()

    def _trigger_epoch(self) -> None:
        self._add()

    def _after_train(self) -> None:
        self._add()

    def _add(self) -> None:
        if self._pending:
            scalars, self._pending = self._pending, {}
            self._write(lambda: self._record(scalars, self._step))


class EventWriter(Recorder):
    """TensorBoard's event file of this process: the run's settings, then every summary and scalar.

    Only the first file of the directory holds the graph. The file of a resumed run begins with a restart mark, at which
    TensorBoard drops the events of earlier files for the steps that are repeated. The file is flushed after each step
    with events, so that they survive a killed process.

    Args:
        directory: the directory of the event files.
        settings: the settings of the run by dotted name, shown as text and as hyper-parameters; None: not shown.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{directory}: {type(self).__name__}", _FAILURES)
        self._directory, self._settings = Path(directory), settings

    def _setup_graph(self) -> None:
        self._writer: Any = None
        self._fresh = False

    def _before_train(self) -> None:
        self._write(self._open)

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        earlier = sorted(self._directory.glob("events.out.tfevents.*"))
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{len(earlier)}"
        self._writer = tf.io.TFRecordWriter(str(self._directory / name))
        self._put(tf1.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if any(_has_graph(file) for file in earlier):
            restart = tf1.SessionLog(status=tf1.SessionLog.START)
            self._put(tf1.Event(wall_time=time.time(), step=self.global_step + 1, session_log=restart))
        else:
            self._put(tf1.Event(wall_time=time.time(), graph_def=self.graph.as_graph_def().SerializeToString()))
        self.process_summary(charts(CHARTS))
        if self._settings:
            self.process_summary(text_summary("settings", settings_table(self._settings)))
            self.process_summary(hyper_parameters(self._settings, self._directory))

    def _put(self, event: Any) -> None:
        if self._writer is not None:
            self._fresh = True
            self._writer.write(event.SerializeToString())

    def process_summary(self, summary: Any) -> None:
        """Write a `tf.Summary` into the event file."""
        self.process_event(tf1.Event(step=self.global_step, wall_time=time.time(), summary=summary))

    def process_event(self, evt: Any) -> None:
        """Write a `tf.Event` into the event file."""
        self._write(lambda: self._put(evt))

    def _trigger_step(self) -> None:
        self._flush()

    def _trigger_epoch(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._fresh:
            self._fresh = False
            self._write(self._writer.flush)

    def _after_train(self) -> None:
        if self._writer is not None:
            self._write(self._writer.close)


def _has_graph(file: Path) -> bool:
    try:
        return any(event.HasField("graph_def") for event in islice(tf1.train.summary_iterator(str(file)), 2))
    except tf.errors.DataLossError:     # the process was killed before it had written the graph
        return False


class StatsWriter(StepRecorder):
    """A monitor that writes `stats.jsonl`: one JSON object per line, for each step with scalars.

    A scalar that is not finite is null, because JSON has no other value for it. A resumed run removes the lines of the
    steps that it repeats.

    Args:
        directory: the directory of the file.
    """

    def __init__(self, directory: str | Path) -> None:
        super().__init__(f"{directory}: {type(self).__name__}", _FAILURES)
        self._path = Path(directory) / "stats.jsonl"

    def _before_train(self) -> None:
        self._write(self._drop_later)

    def _drop_later(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        drop_later_entries(self._path, self.global_step)

    def _record(self, scalars: dict[str, Any], step: int) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        line = json.dumps({**finite, "epoch_num": self.epoch_num, "global_step": step})
        # A directory that was removed or renamed is not created again, because it may come back.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def drop_later_entries(file: Path, step: int) -> None:
    """Remove the entries of later steps than `step`, and incomplete lines, from a `stats.jsonl`, if it exists."""
    if file.exists():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        write_text(file, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))


def _step_of(line: str) -> float:
    """Return the step of an entry; infinity for an incomplete line, which a killed process may leave."""
    try:
        return int(json.loads(line)["global_step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
