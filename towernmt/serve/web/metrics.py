"""Figures for Prometheus: counters, gauges and histograms, in its text format 0.0.4.

Labels come from tables of the server alone (routes, statuses, directions), so that no request can make new series.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """All figures of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, tuple[list[int], float]]] = {}
        self._bounds: dict[str, Sequence[float]] = {}
        self._gauges: dict[str, Callable[[], dict[Labels, float]]] = {}

    def counter(self, name: str, help: str) -> None:
        """Declare a counter."""
        self._kinds[name], self._counts[name] = ("counter", help), {}

    def histogram(self, name: str, help: str, bounds: Sequence[float]) -> None:
        """Declare a histogram.

        Args:
            bounds: upper ones of its buckets, but for the last.
        """
        self._kinds[name], self._histograms[name], self._bounds[name] = ("histogram", help), {}, bounds

    def gauge(self, name: str, help: str, read: Callable[[], dict[Labels, float]]) -> None:
        """Declare what is read when it is asked for."""
        self._kinds[name], self._gauges[name] = ("gauge", help), read

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Count."""
        with self._lock:
            counts = self._counts[name]
            key = tuple(sorted(labels.items()))
            counts[key] = counts.get(key, 0.0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count a value in its bucket."""
        with self._lock:
            bounds = self._bounds[name]
            key = tuple(sorted(labels.items()))
            buckets, total = self._histograms[name].get(key, ([0] * (len(bounds) + 1), 0.0))
            buckets[bisect_left(bounds, value)] += 1
            self._histograms[name][key] = buckets, total + value

    def text(self) -> str:
        """All of them, as Prometheus reads them."""
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
                lines += [f"{name}{_braced(key)} {value:g}" if value < 1e6 else f"{name}{_braced(key)} {value:.0f}"
                          for key, value in sorted(values.items())]
        return "\n".join(lines) + "\n"


def _buckets(name: str, bounds: Sequence[float],
             values: dict[Labels, tuple[list[int], float]]) -> Iterator[str]:
    for key, (buckets, total) in sorted(values.items()):
        so_far = 0
        for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), buckets, strict=True):
            so_far += count
            yield f"{name}_bucket{_braced((*key, ('le', bound)))} {so_far}"
        yield f"{name}_sum{_braced(key)} {total:.6f}"
        yield f"{name}_count{_braced(key)} {so_far}"


def _braced(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
