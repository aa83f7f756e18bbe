"""Measure several candidates in alternation on a machine whose speed drifts: rounds, medians, spreads and ratios.

Each candidate runs once per round. Every second round runs in reverse order, so that drift within a round affects all
candidates alike. Ratios are computed within a round, while the machine is in nearly the same state. The median ratio
counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.text_table import align_columns


class Summary(NamedTuple):
    """Statistics of one candidate over all rounds.

    Attributes:
        median: median of the figure.
        spread: (largest - smallest) / median.
        ratio: median of the candidate's figure divided by the first candidate's figure in the same round.
        low, high: quartiles of the ratios.
        rounds: number of rounds.
    """

    median: float
    spread: float
    ratio: float
    low: float
    high: float
    rounds: int


def in_turn(names: Sequence[str], round_number: int) -> list[str]:
    """Return the names in the order of round `round_number`: even rounds forwards, odd rounds backwards."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


def take_turns(functions: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each function once per round and return its results, one per round."""
    results: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds):
        for name in in_turn(list(functions), number):
            results[name].append(functions[name]())
    return results


def summarize(results: Mapping[str, Sequence[float]]) -> dict[str, Summary]:
    """Return a summary of each candidate. Ratios are relative to the first one; all need the same number of rounds."""
    first = next(iter(results.values()))
    return {name: _summary(values, first) for name, values in results.items()}


def _summary(values: Sequence[float], first: Sequence[float]) -> Summary:
    ratios = [value / base for value, base in zip(values, first, strict=True)]
    low, ratio, high = quartiles(ratios)
    middle = statistics.median(values)
    return Summary(middle, (max(values) - min(values)) / middle, ratio, low, high, len(values))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile; a single value is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, statistics.median(values), high


def last_record(output: str) -> dict[str, Any] | None:
    """Return the last line of `output` that is a JSON object, or None."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                return record
    return None


def table(records: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, further_metrics: Sequence[str] = ()) -> str:
    """Return a text table: median, spread and ratio of `metric` for each name, and medians of `further_metrics`.

    Args:
        records: one record per round for each name.
        metric: key of the figure to compare.
        further_metrics: keys of further figures.
    """
    rows = [["", metric, "spread", "ratio", "quartiles", "rounds", *further_metrics]]
    summaries = summarize({name: [float(r[metric]) for r in rounds] for name, rounds in records.items()})
    for name, s in summaries.items():
        medians = [_median_of(records[name], further_metric) for further_metric in further_metrics]
        rows.append([name, f"{s.median:.5g}", f"{s.spread:.1%}", f"{s.ratio:.3f}", f"{s.low:.3f} to {s.high:.3f}",
                     str(s.rounds), *medians])
    return "\n".join(align_columns(rows))


def _median_of(records: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [record[key] for record in records if isinstance(record.get(key), (int, float))]
    return f"{statistics.median(values):.4g}" if values else "-"
