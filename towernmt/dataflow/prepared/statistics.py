"""What a preparation found: counts, lengths, their ratio, unknown rate, and what was dropped and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.files.json_files import Natural
from towernmt.dataflow.prepare.encode import EncodedChunk
from towernmt.dataflow.text.filters.pair_filter import DROP_REASONS, LENGTH_REASONS
from towernmt.dataflow.vocabulary.vocabulary import UNK

_EXAMPLES = 5


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
    """What `statistics.json` holds; see `Statistics.to_json`."""

    lines: Natural
    pairs: Natural
    dropped: dict[str, DropReport]
    source: SideReport
    target: SideReport
    length_ratio: dict[str, float]
    source_factors: list[dict[str, float]] = field(default_factory=list)
    alignments: dict[str, Natural] | None = None


class Statistics:
    """Gathered chunk by chunk, in constant memory; a pure function of the chunks and their order.

    Args:
        max_length: most tokens a kept sentence has.
        factors: source factors.
        linked: whether there are alignments.
    """

    def __init__(self, max_length: int, factors: int = 0, linked: bool = False) -> None:
        self._unknown_factors = [0] * factors
        self._links: dict[str, int] | None = {"links": 0, "pairs": 0} if linked else None
        self._lines = 0
        self._pairs = 0
        self._sides = {"source": _Side(max_length), "target": _Side(max_length)}
        self._ratio_sum = self._ratio_squares = 0.0
        self._dropped: dict[str, dict[str, Any]] = {
            reason: {"pairs": 0, "first_lines": []} for reason in DROP_REASONS}

    def add(self, chunk: EncodedChunk) -> None:
        """Count a chunk."""
        self._lines += chunk.lines
        self._pairs += len(chunk.line_numbers)
        self._sides["source"].add(chunk.source_lengths, chunk.source_ids)
        self._sides["target"].add(chunk.target_lengths, chunk.target_ids)
        for factor in range(len(self._unknown_factors)):
            if chunk.source_factors is not None:
                self._unknown_factors[factor] += int(np.count_nonzero(chunk.source_factors[factor] == UNK))
        if self._links is not None and chunk.link_counts is not None:
            self._links["links"] += int(chunk.link_counts.sum())
            self._links["pairs"] += int(np.count_nonzero(chunk.link_counts))
        ratios = chunk.source_lengths / chunk.target_lengths
        self._ratio_sum += float(ratios.sum())
        self._ratio_squares += float(np.square(ratios).sum())
        for reason, lines in chunk.dropped.items():
            entry = self._dropped[reason]
            entry["pairs"] += len(lines)
            entry["first_lines"] += lines[:_EXAMPLES - len(entry["first_lines"])].tolist()

    @property
    def pairs(self) -> int:
        """Pairs that were kept."""
        return self._pairs

    @property
    def length_ratio(self) -> float:
        """Mean over the pairs of source tokens / target tokens."""
        return self._ratio_sum / self._pairs

    def dropped_in_words(self) -> str:
        """For example "12 empty source (lines 4, 9, ...), 3 long target (lines 7, 8, 20)"."""
        return ", ".join(f"{entry['pairs']:,} {reason} ({_lines(entry)})"
                         for reason, entry in self._dropped.items() if entry["pairs"]) or "none"

    def to_json(self) -> dict[str, Any]:
        """The content of `statistics.json`.

        `length_histogram[n]` is the number of sentences with n tokens; the deviation is that of the whole
        population. `source_factors` and `alignments` (links of pieces, and pairs with links) are there if the corpus
        has them.
        """
        mean = self.length_ratio
        variance = max(self._ratio_squares / self._pairs - mean * mean, 0.0)
        source = self._sides["source"].to_json()
        beside: dict[str, Any] = {}
        if self._unknown_factors:
            beside["source_factors"] = [{"unknown": unknown, "unknown_rate": unknown / source["tokens"]}
                                        for unknown in self._unknown_factors]
        if self._links is not None:
            beside["alignments"] = self._links
        return {
            "lines": self._lines,
            "pairs": self._pairs,
            "dropped": {reason: entry for reason, entry in self._dropped.items()
                        if entry["pairs"] or reason in LENGTH_REASONS},
            "source": source,
            "target": self._sides["target"].to_json(),
            "length_ratio": {"mean": mean, "deviation": math.sqrt(variance)},
            **beside,
        }


class _Side:
    def __init__(self, max_length: int) -> None:
        self._histogram: NDArray[np.int64] = np.zeros(max_length + 1, np.int64)
        self._unknown = 0

    def add(self, lengths: NDArray[np.int32], ids: NDArray[np.integer]) -> None:
        self._histogram += np.bincount(lengths, minlength=len(self._histogram))
        self._unknown += int(np.count_nonzero(ids == UNK))

    def to_json(self) -> dict[str, Any]:
        histogram = self._histogram
        lengths = np.arange(len(histogram))
        tokens, sentences = int((histogram * lengths).sum()), int(histogram.sum())
        longest = int(np.flatnonzero(histogram)[-1])
        mean = tokens / sentences
        deviation = math.sqrt(float((histogram * (lengths - mean) ** 2).sum()) / sentences)
        return {
            "tokens": tokens,
            "unknown": self._unknown,
            "unknown_rate": self._unknown / tokens,
            "length_mean": mean,
            "length_deviation": deviation,
            "length_quantiles": {f"{q:g}": _quantile(histogram, q) for q in (0.5, 0.9, 0.99, 1.0)},
            "length_histogram": histogram[:longest + 1].tolist(),
        }


def _quantile(histogram: NDArray[np.int64], q: float) -> int:
    """The smallest length that at least a share q of the sentences do not exceed."""
    cumulated = np.cumsum(histogram)
    return int(np.searchsorted(cumulated, math.ceil(q * int(cumulated[-1]))))


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
            lines.append(f"  {entry['pairs']:,} {reason}: {DROP_REASONS[reason]} ({_lines(entry)})")
    lines += beside_in_words(statistics, vocabularies)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines) + "\n"


def beside_in_words(statistics: dict[str, Any], vocabularies: dict[str, Any]) -> list[str]:
    """A sentence on each source factor, and one on the alignments, as far as there are any; arguments as of `table`."""
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


def _lines(entry: dict[str, Any]) -> str:
    shown = ", ".join(str(line) for line in entry["first_lines"])
    more = ", ..." if entry["pairs"] > len(entry["first_lines"]) else ""
    return f"line{'s' if entry['pairs'] > 1 else ''} {shown}{more}"
