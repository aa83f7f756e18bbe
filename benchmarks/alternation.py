"""Measuring several things in turn, on a machine whose speed drifts: rounds, medians, spreads and ratios.

In a round each takes one turn, and every second round goes the other way round, so that a drift within rounds falls on
all alike. Ratios are taken within rounds, where the machine was nearly the same, and their median counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Summary(NamedTuple):
    """What rounds say of one thing.

    Attributes:
        median: over the rounds.
        spread: largest less smallest, as a part of the median.
        ratio: median over the rounds of its figure by that of the first thing in the same round.
        low, high: quartiles of these ratios.
        rounds: how many.
    """

    median: float
    spread: float
    ratio: float
    low: float
    high: float
    rounds: int


def in_turn(names: Sequence[str], round_number: int) -> list[str]:
    """The order of round `round_number`: forwards, then backwards, and so on."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


def take_turns(things: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each function returned in each round."""
    taken: dict[str, list[float]] = {name: [] for name in things}
    for number in range(rounds):
        for name in in_turn(list(things), number):
            taken[name].append(things[name]())
    return taken


def summarize(taken: Mapping[str, Sequence[float]]) -> dict[str, Summary]:
    """A summary of each; all have as many rounds, and the first is what the ratios are to."""
    first = next(iter(taken.values()))
    return {name: _summary(values, first) for name, values in taken.items()}


def _summary(values: Sequence[float], first: Sequence[float]) -> Summary:
    ratios = [value / base for value, base in zip(values, first, strict=True)]
    low, ratio, high = quartiles(ratios)
    middle = statistics.median(values)
    return Summary(middle, (max(values) - min(values)) / middle, ratio, low, high, len(values))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; of one value, itself."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, statistics.median(values), high


def last_record(output: str) -> dict[str, Any] | None:
    """The last line that is a JSON object; None if there is none."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return None


def table(records: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, others: Sequence[str] = ()) -> str:
    """Lines of text: for each name its median, spread and ratio to the first of `metric`, and medians of `others`.

    Args:
        records: for each name one record a round.
    """
    rows = [["", metric, "spread", "ratio", "quartiles", "rounds", *others]]
    summaries = summarize({name: [float(r[metric]) for r in rounds] for name, rounds in records.items()})
    for name, s in summaries.items():
        more = [_median_of(records[name], other) for other in others]
        rows.append([name, f"{s.median:.5g}", f"{s.spread:.1%}", f"{s.ratio:.3f}", f"{s.low:.3f} to {s.high:.3f}",
                     str(s.rounds), *more])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in
                                                           zip(row[1:], widths[1:], strict=True)]]) for row in rows)


def _median_of(records: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [record[key] for record in records if isinstance(record.get(key), (int, float))]
    return f"{statistics.median(values):.4g}" if values else "-"
