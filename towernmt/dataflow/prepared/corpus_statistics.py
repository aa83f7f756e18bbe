"""What a preparation found: counts, lengths, their ratio, unknown rate, and what was dropped and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from towernmt.core.files.json_files import Natural
from towernmt.dataflow.text.filters.pair_filter import DROP_REASONS


@dataclass(frozen=True)
class SideReport:
    """One side's part of `statistics.json`."""

    tokens: Natural
    unknown: Natural
    unknown_rate: float
    length_mean: float
    length_deviation: float
    length_quantiles: dict[str, Natural]
    length_histogram: list[Natural]


@dataclass(frozen=True)
class DropReport:
    """Pairs that were dropped for one reason, and the first lines of them."""

    pairs: Natural
    first_lines: list[Natural]


@dataclass(frozen=True)
class StatisticsReport:
    """What `statistics.json` holds; see `towernmt.dataflow.prepare.statistics_counter`."""

    lines: Natural
    pairs: Natural
    dropped: dict[str, DropReport]
    source: SideReport
    target: SideReport
    length_ratio: dict[str, float]
    source_factors: list[dict[str, float]] = field(default_factory=list)
    alignments: dict[str, Natural] | None = None


def table(statistics: dict[str, Any], vocabularies: dict[str, Any], notes: Sequence[str]) -> str:
    """Statistics as text for people.

    Args:
        statistics: from `Statistics.to_json`.
        vocabularies: "source" and "target" to `{"kind": ..., "size": ...}`; "source_factors" to a list of such.
        notes: sentences to add at the end.
    """
    source, target = statistics["source"], statistics["target"]
    left, right = (f"{vocabularies[side]['size']:,} {vocabularies[side]['kind']}"
                   for side in ("source", "target"))
    rows = [("", "source", "target"), ("vocabulary", left, right)]
    for label, form in (
            ("tokens", lambda side: f"{side['tokens']:,}"),
            ("unknown tokens", lambda side: f"{side['unknown']:,} ({100 * side['unknown_rate']:.3f} %)"),
            ("length, mean", lambda side: f"{side['length_mean']:.2f}"),
            ("length, deviation", lambda side: f"{side['length_deviation']:.2f}"),
            ("length, median", lambda side: f"{side['length_quantiles']['0.5']}"),
            ("length, 99 % up to", lambda side: f"{side['length_quantiles']['0.99']}"),
            ("length, longest", lambda side: f"{side['length_quantiles']['1']}")):
        rows.append((label, form(source), form(target)))
    rows.append(("sentences by length", "", ""))
    rows += _histogram_rows(source["length_histogram"], target["length_histogram"])
    ratio = statistics["length_ratio"]
    lines = [f"{label:<22}{left:>22}{right:>22}".rstrip() for label, left, right in rows]
    lines.append(f"length ratio source/target: mean {ratio['mean']:.4f}, deviation {ratio['deviation']:.4f}")
    dropped = sum(entry["pairs"] for entry in statistics["dropped"].values())
    lines.append(f"pairs: {statistics['pairs']:,} of {statistics['lines']:,} lines; {dropped:,} dropped")
    for reason, entry in statistics["dropped"].items():
        if entry["pairs"]:
            lines.append(f"  {entry['pairs']:,} {reason}: {DROP_REASONS[reason]} ({lines_in_words(entry)})")
    lines += annotations_in_words(statistics, vocabularies)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines) + "\n"


def annotations_in_words(statistics: dict[str, Any], vocabularies: dict[str, Any]) -> list[str]:
    """A sentence on each source factor, and one on the alignments, if there are any; arguments as of `table`."""
    sentences = [f"source factor {number}: {vocabularies['source_factors'][number - 1]['size']:,} values, "
                 f"{100 * factor['unknown_rate']:.3f} % unknown"
                 for number, factor in enumerate(statistics.get("source_factors", ()), 1)]
    if "alignments" in statistics:
        links, pairs = statistics["alignments"]["links"], statistics["alignments"]["pairs"]
        sentences.append(f"alignments: {links:,} links of tokens in {pairs:,} pairs")
    return sentences


def _histogram_rows(source: list[int], target: list[int]) -> list[tuple[str, str, str]]:
    """Sentences in ranges of length that double: 1-4, 5-8, 9-16, ..."""
    rows: list[tuple[str, str, str]] = []
    start, stop = 1, 4
    while start < max(len(source), len(target)):
        left, right = (f"{sum(side[start:stop + 1]):,}" for side in (source, target))
        rows.append((f"  {start} to {stop} tokens", left, right))
        start, stop = stop + 1, stop * 2
    return rows


def lines_in_words(entry: dict[str, Any]) -> str:
    """The first lines of the pairs that were dropped for one reason, such as "lines 4, 9, ..."."""
    shown = ", ".join(str(line) for line in entry["first_lines"])
    more = ", ..." if entry["pairs"] > len(entry["first_lines"]) else ""
    return f"line{'s' if entry['pairs'] > 1 else ''} {shown}{more}"
