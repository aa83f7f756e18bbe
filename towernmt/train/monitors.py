"""Write scalars to TensorBoard's event files and to `stats.jsonl`.

tensorpack's own writers raise an error (or print a stack trace) when the disk is full. These writers log one warning
that nothing more is recorded, and training continues.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tensorpack.callbacks.monitor import MonitorBase
from tensorpack.utils import logger

from towernmt.callbacks.summaries import charts, hyper_parameters, settings_table, text_summary
from towernmt.core.files import write_text
from towernmt.core.tf_compat import tf, tf1

# TensorFlow's file writers raise IndexError for "file too large".
_FAILURES = (OSError, IndexError, RuntimeError, tf.errors.OpError)


CHARTS = {
    "loss of a target token, without label smoothing (nats)": ["nll$", "validation_loss(/.*)?$"],
    "perplexity": ["perplexity$", "validation_perplexity(/.*)?$"],
}
"""TensorBoard charts of training and validation together: title to regular expressions of tags."""


class _FileMonitor(MonitorBase):
    """A monitor of the chief that writes to a file. The first failure is logged, and then nothing more is written."""

    _chief_only = True

    def __init__(self, directory: str | Path) -> None:
        self._directory, self._failed = Path(directory), False

    def _write(self, action: Callable[[], Any]) -> None:
        if self._failed:
            return
        try:
            action()
        except _FAILURES as error:
            self._failed = True
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.warning(f"{self._directory}: {type(self).__name__} records nothing more ({reason}).")


class EventWriter(_FileMonitor):
    """TensorBoard's event file of this process: the run's settings, then every summary and scalar.

    Only the first file of the directory holds the graph. The file of a resumed run begins with a restart mark, at which
    TensorBoard drops the events of earlier files for the steps that are repeated. The file is flushed after each step
    with events, so that they survive a killed process.

    Args:
        directory: the directory of the event files.
        settings: the settings of the run by dotted name, shown as text and as hyper-parameters; None: not shown.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(directory)
        self._settings = settings

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


class StatsWriter(_FileMonitor):
    """A monitor that writes `stats.jsonl`: one JSON object per line, for each step with scalars.

    A resumed run removes the lines of the steps that it repeats.
    """

    def _setup_graph(self) -> None:
        self._path = self._directory / "stats.jsonl"
        self._now: dict[str, Any] = {}
        self._step = 0      # of these scalars

    def _before_train(self) -> None:
        self._write(self._drop_later)

    def _drop_later(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line) <= self.global_step]
            write_text(self._path, "".join(f"{line}\n" for line in kept))

    def process_scalar(self, name: str, val: Any) -> None:
        """Keep a scalar for the line of this step; a validation before the first update has a line, too."""
        if self._step != self.global_step:
            self._add()
        self._step = self.global_step
        self._now[name] = val

    def _trigger_step(self) -> None:
        self._add()

    def _trigger_epoch(self) -> None:
        self._add()

    def _after_train(self) -> None:
        self._add()

    def _add(self) -> None:
        if self._now:
            entry = {**self._now, "epoch_num": self.epoch_num, "global_step": self._step}
            self._now = {}
            self._write(lambda: self._append(json.dumps(entry)))

    def _append(self, line: str) -> None:
        # A directory that was removed or renamed is not created again, because it may come back.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _step_of(line: str) -> float:
    """Return the step of an entry; infinity for an incomplete line, which a killed process may leave."""
    try:
        return int(json.loads(line)["global_step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
