"""The server's log and its metrics for Prometheus.

- The log is a line of JSON for each request and event, on stderr, without text of users. An error is logged by its
  class and its lines of code, not by its message, which may quote a user's text.
- Metrics are counters, gauges and histograms, in Prometheus' text format 0.0.4. Labels come from tables of the
  server alone (routes, statuses, directions), so that no request can make new series.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

REQUESTS = "towernmt.serve.requests"
"""The logger of requests; what it logs has `fields`."""
_LOGGERS = ("towernmt", "uvicorn.error")


class JSONLines(logging.Formatter):
    """Formatter that writes each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                                + f".{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        line |= fields if fields is not None else {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            line |= _traceback_json(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Write the logs of towernmt and uvicorn's errors to stderr as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    for name in _LOGGERS:
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.setLevel(logging.INFO)
        log.propagate = False


def _traceback_json(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {"error": type(error).__name__, "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]}


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, histograms and gauges of a server, in the text format of Prometheus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, tuple[list[int], float]]] = {}
        self._bounds: dict[str, Sequence[float]] = {}
        self._gauges: dict[str, Callable[[], dict[Labels, float]]] = {}

    def counter(self, name: str, help: str) -> None:
        """Declare a counter with its help text."""
        self._kinds[name], self._counts[name] = ("counter", help), {}

    def histogram(self, name: str, help: str, bounds: Sequence[float]) -> None:
        """Declare a histogram with its help text.

        Args:
            name: metric name.
            help: help text.
            bounds: upper bounds of all buckets except the last.
        """
        self._kinds[name], self._histograms[name], self._bounds[name] = ("histogram", help), {}, bounds

    def gauge(self, name: str, help: str, read: Callable[[], dict[Labels, float]]) -> None:
        """Declare a gauge, which `read` computes for each request."""
        self._kinds[name], self._gauges[name] = ("gauge", help), read

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            counts = self._counts[name]
            key = tuple(sorted(labels.items()))
            counts[key] = counts.get(key, 0.0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        with self._lock:
            bounds = self._bounds[name]
            key = tuple(sorted(labels.items()))
            buckets, total = self._histograms[name].get(key, ([0] * (len(bounds) + 1), 0.0))
            buckets[bisect_left(bounds, value)] += 1
            self._histograms[name][key] = buckets, total + value

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        with self._lock:
            counts = {name: dict(values) for name, values in self._counts.items()}
            histograms = {name: {key: (list(buckets), total) for key, (buckets, total) in values.items()}
                          for name, values in self._histograms.items()}
        lines: list[str] = []
        for name, (kind, help) in self._kinds.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                lines += _buckets(name, self._bounds[name], histograms[name])
            else:
                values = counts[name] if kind == "counter" else self._gauges[name]()
                lines += [f"{name}{_label_text(labels)} {f'{value:g}' if value < 1e6 else f'{value:.0f}'}"
                          for labels, value in sorted(values.items())]
        return "\n".join(lines) + "\n"


def _buckets(name: str, bounds: Sequence[float],
             values: dict[Labels, tuple[list[int], float]]) -> Iterator[str]:
    for key, (buckets, total) in sorted(values.items()):
        cumulative = 0
        for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), buckets, strict=True):
            cumulative += count
            yield f"{name}_bucket{_label_text((*key, ('le', bound)))} {cumulative}"
        yield f"{name}_sum{_label_text(key)} {total:.6f}"
        yield f"{name}_count{_label_text(key)} {cumulative}"


def _label_text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
