"""Statistics of a corpus: counts, lengths, their ratio, the unknown rate, and dropped pairs with the reasons.

They are counted while the corpus is encoded. The histogram over (source length, target length) is the file
`lengths.tsv` of a preparation; batches and padding can be estimated from it alone. A line has the tokens of the
source, the tokens of the target (both without EOS), and the number of pairs with these lengths. Preparations of
old versions lack the file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.core.structured_files import Natural
from towernmt.core.text_table import align_columns
from towernmt.dataflow.preparation.chunk_encoder import EncodedChunk
from towernmt.dataflow.preparation.shards import PREPARE_AGAIN, PairBlock
from towernmt.dataflow.text.pair_filters import DROP_REASONS, LENGTH_REASONS
from towernmt.dataflow.vocabulary.base import UNK


@dataclass(frozen=True)
class SideReport:
    """The statistics of one side in `statistics.json`."""

    tokens: Natural
    unknown: Natural
    unknown_rate: float
    length_mean: float
    length_deviation: float
    length_quantiles: dict[str, Natural]
    length_histogram: list[Natural]


@dataclass(frozen=True)
class DropReport:
    """The pairs that were dropped for one reason: their number, and the first line numbers."""

    pairs: Natural
    first_lines: list[Natural]


@dataclass(frozen=True)
class StatisticsReport:
    """The content of `statistics.json`."""

    lines: Natural
    pairs: Natural
    dropped: dict[str, DropReport]
    source: SideReport
    target: SideReport
    length_ratio: dict[str, float]
    source_factors: list[dict[str, float]] = field(default_factory=list)
    alignments: dict[str, Natural] | None = None


def statistics_table(statistics: dict[str, Any], vocabularies: dict[str, Any], notes: Sequence[str]) -> str:
    """Return statistics as a table for readers.

    Args:
        statistics: result of `Statistics.to_json`.
        vocabularies: `{"kind": ..., "size": ...}` for "source" and "target", and a list of these for "source_factors".
        notes: sentences to add at the end.
    """
    source, target = statistics["source"], statistics["target"]
    source_entries, target_entries = (f"{vocabularies[side]['size']:,} {vocabularies[side]['kind']}"
                                      for side in ("source", "target"))
    rows = [("", "source", "target"), ("vocabulary", source_entries, target_entries)]
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
    lines = align_columns(rows)
    lines.append(f"length ratio source/target: mean {ratio['mean']:.4f}, deviation {ratio['deviation']:.4f}")
    dropped = sum(entry["pairs"] for entry in statistics["dropped"].values())
    lines.append(f"pairs: {statistics['pairs']:,} of {statistics['lines']:,} lines; {dropped:,} dropped")
    for reason, entry in statistics["dropped"].items():
        if entry["pairs"]:
            lines.append(f"  {entry['pairs']:,} {reason}: {DROP_REASONS[reason]} ({describe_lines(entry)})")
    lines += describe_annotations(statistics, vocabularies)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines) + "\n"


def describe_annotations(statistics: dict[str, Any], vocabularies: dict[str, Any]) -> list[str]:
    """Return a sentence for each source factor, and one for the alignments; see `statistics_table`."""
    sentences = [f"source factor {number}: {vocabularies['source_factors'][number - 1]['size']:,} values, "
                 f"{100 * factor['unknown_rate']:.3f} % unknown"
                 for number, factor in enumerate(statistics.get("source_factors", ()), 1)]
    if "alignments" in statistics:
        links, pairs = statistics["alignments"]["links"], statistics["alignments"]["pairs"]
        sentences.append(f"alignments: {links:,} links of tokens in {pairs:,} pairs")
    return sentences


def _histogram_rows(source: list[int], target: list[int]) -> list[tuple[str, str, str]]:
    """Return the number of sentences in ranges of lengths: 1 to 4, 5 to 8, 9 to 16, ..."""
    rows: list[tuple[str, str, str]] = []
    start, stop = 1, 4
    while start < max(len(source), len(target)):
        source_count, target_count = (f"{sum(side[start:stop + 1]):,}" for side in (source, target))
        rows.append((f"  {start} to {stop} tokens", source_count, target_count))
        start, stop = stop + 1, stop * 2
    return rows


def describe_lines(entry: dict[str, Any]) -> str:
    """Return the first lines of the pairs that were dropped for one reason, such as "lines 4, 9, ..."."""
    line_numbers = ", ".join(str(line) for line in entry["first_lines"])
    ellipsis = ", ..." if entry["pairs"] > len(entry["first_lines"]) else ""
    return f"line{'s' if entry['pairs'] > 1 else ''} {line_numbers}{ellipsis}"


def dropped_in_words(dropped: Mapping[str, dict[str, Any]], with_lines: bool = True) -> str:
    """Return the dropped pairs by reason: "12 empty source (lines 4, 9, ...), 3 long target (lines 7, 8, 20)".

    Args:
        dropped: for each reason the number of pairs and their first lines, as in `statistics.json`.
        with_lines: whether the lines are named.
    """
    return ", ".join(f"{entry['pairs']:,} {reason}{f' ({describe_lines(entry)})' if with_lines else ''}"
                     for reason, entry in dropped.items() if entry["pairs"]) or "none"


LENGTHS = "lengths.tsv"


@dataclass(frozen=True)
class PairLengths:
    """A histogram of the lengths of pairs, with each combination once.

    Attributes:
        source: int64 `[combinations]`, in tokens without EOS.
        target: int64 `[combinations]`, in tokens without EOS.
        pairs: int64 `[combinations]`, number of pairs.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    pairs: NDArray[np.int64]

    def to_text(self) -> str:
        """Return the content of the file."""
        return "".join(f"{source}\t{target}\t{pairs}\n" for source, target, pairs in zip(
            self.source.tolist(), self.target.tolist(), self.pairs.tolist(), strict=True))

    def sample(self, pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of representative pairs: every n-th pair in the order of length.

        Returns:
            source lengths and target lengths: int64 `[pairs]`, in tokens without EOS.
        """
        order = np.lexsort((self.source - self.target, np.maximum(self.source, self.target)))
        ends = np.cumsum(self.pairs[order])
        ranks = (np.arange(pairs) * 2 + 1) * int(ends[-1]) // (2 * pairs)
        sampled = order[np.searchsorted(ends, ranks, side="right")]
        return self.source[sampled], self.target[sampled]


def parse_pair_lengths(content: bytes, name: str) -> PairLengths:
    """Parse the content of `lengths.tsv`.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Raises:
        DataError: it is damaged.
    """
    try:
        rows = np.array([line.split(b"\t") for line in content.splitlines()]).astype(np.int64)  # [combinations, 3]
        source, target, pairs = rows.T
    except ValueError as error:
        raise DataError(f"{name}: not three whole numbers a line. {PREPARE_AGAIN}") from error
    if not len(pairs) or rows.min() < 0 or not pairs.sum():
        raise DataError(f"{name}: no histogram of lengths. {PREPARE_AGAIN}")
    return PairLengths(source, target, pairs)


_EXAMPLES = 5
_LENGTH_LIMIT = 1 << 31     # above all lengths, which are int32


class Statistics:
    """Statistics of a corpus, counted chunk by chunk in constant memory.

    They are a pure function of the chunks and their order.

    Args:
        factors: number of source factors.
        linked: whether the pairs have alignments.
    """

    def __init__(self, factors: int = 0, linked: bool = False) -> None:
        self._unknown_factors = [0] * factors
        self._links: dict[str, int] | None = {"links": 0, "pairs": 0} if linked else None
        self._pair_lengths: Counter[int] = Counter()  # source length * _LENGTH_LIMIT + target length
        self._lines = 0
        self._pairs = 0
        self._sides = {"source": _SideCounter(), "target": _SideCounter()}
        self._ratios: list[tuple[float, float]] = []    # sum of each chunk, and sum of the squares
        self._dropped: dict[str, dict[str, Any]] = {
            reason: {"pairs": 0, "first_lines": []} for reason in DROP_REASONS}

    def add(self, chunk: EncodedChunk) -> None:
        """Add the counts of a chunk."""
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
        codes, counts = np.unique(chunk.source_lengths.astype(np.int64) * _LENGTH_LIMIT + chunk.target_lengths,
                                  return_counts=True)
        self._pair_lengths.update(dict(zip(codes.tolist(), counts.tolist(), strict=True)))
        ratios = chunk.source_lengths / chunk.target_lengths
        self._ratios.append((float(ratios.sum()), float(np.square(ratios).sum())))
        for reason, lines in chunk.dropped.items():
            self._drop(reason, len(lines), lines[:_EXAMPLES].tolist())

    def count_links(self, block: PairBlock) -> None:
        """Count the alignments of a shard, for alignments that are not in the chunks."""
        if self._links is not None and block.link_offsets is not None:
            self._links["links"] += int(block.link_offsets[-1])
            self._links["pairs"] += int(np.count_nonzero(np.diff(block.link_offsets)))

    def state(self) -> dict[str, Any]:
        """Return the counts as JSON; see `merge`."""
        return {
            "lines": self._lines, "pairs": self._pairs, "dropped": self._dropped, "ratios": self._ratios,
            "sides": {name: side.state() for name, side in self._sides.items()},
            "unknown_factors": self._unknown_factors, "links": self._links,
            "pair_lengths": [list(self._pair_lengths), list(self._pair_lengths.values())]}

    def merge(self, state: dict[str, Any]) -> None:
        """Add the counts of the following chunks.

        Sums of fractions are stored for each chunk and added in the order of the chunks, so that the result is exactly
        the same for any division of the chunks.

        Args:
            state: result of `state` of another object.
        """
        self._lines += state["lines"]
        self._pairs += state["pairs"]
        for name, side in self._sides.items():
            side.merge(state["sides"][name])
        self._unknown_factors = [sum(counts) for counts in zip(self._unknown_factors, state["unknown_factors"],
                                                               strict=True)]
        if self._links is not None and state["links"] is not None:
            self._links = {name: count + state["links"][name] for name, count in self._links.items()}
        self._pair_lengths.update(dict(zip(*state["pair_lengths"], strict=True)))
        self._ratios += [(first, second) for first, second in state["ratios"]]
        for reason, dropped in state["dropped"].items():
            self._drop(reason, dropped["pairs"], dropped["first_lines"])

    def _drop(self, reason: str, pairs: int, first_lines: list[int]) -> None:
        entry = self._dropped[reason]
        entry["pairs"] += pairs
        entry["first_lines"] += first_lines[:_EXAMPLES - len(entry["first_lines"])]

    @property
    def pairs(self) -> int:
        """Pairs that were kept."""
        return self._pairs

    @property
    def length_ratio(self) -> float:
        """Mean over the pairs of source tokens / target tokens."""
        return self._ratio_sums()[0] / self._pairs

    def _ratio_sums(self) -> tuple[float, float]:
        first = second = 0.0
        for ratios, squares in self._ratios:    # one after another: `sum` rounds otherwise in other Pythons
            first, second = first + ratios, second + squares
        return first, second

    @property
    def pair_lengths(self) -> PairLengths:
        """The histogram of the lengths of both sides."""
        codes = np.array(sorted(self._pair_lengths), np.int64)
        counts = np.array([self._pair_lengths[code] for code in codes.tolist()], np.int64)
        return PairLengths(*np.divmod(codes, _LENGTH_LIMIT), counts)

    @property
    def dropped(self) -> dict[str, dict[str, Any]]:
        """For each reason, the number of dropped pairs and their first lines."""
        return self._dropped

    def to_json(self) -> dict[str, Any]:
        """Return the content of `statistics.json`.

        `length_histogram[n]` is the number of sentences with n tokens. The deviation is that of the population. The
        entries `source_factors` and `alignments` (links of subwords, and pairs with links) exist if the corpus has
        them.
        """
        mean = self.length_ratio
        variance = max(self._ratio_sums()[1] / self._pairs - mean * mean, 0.0)
        source = self._sides["source"].to_json()
        annotations: dict[str, Any] = {}
        if self._unknown_factors:
            annotations["source_factors"] = [{"unknown": unknown, "unknown_rate": unknown / source["tokens"]}
                                        for unknown in self._unknown_factors]
        if self._links is not None:
            annotations["alignments"] = self._links
        return {
            "lines": self._lines,
            "pairs": self._pairs,
            "dropped": {reason: entry for reason, entry in self._dropped.items()
                        if entry["pairs"] or reason in LENGTH_REASONS},
            "source": source,
            "target": self._sides["target"].to_json(),
            "length_ratio": {"mean": mean, "deviation": math.sqrt(variance)},
            **annotations,
        }


class _SideCounter:
    def __init__(self) -> None:
        self._histogram: NDArray[np.int64] = np.zeros(1, np.int64)      # as long as the longest sentence requires
        self._unknown = 0

    def add(self, lengths: NDArray[np.int32], ids: NDArray[np.integer]) -> None:
        self._add_histogram(np.bincount(lengths))
        self._unknown += int(np.count_nonzero(ids == UNK))

    def state(self) -> dict[str, Any]:
        return {"histogram": self._histogram.tolist(), "unknown": self._unknown}

    def merge(self, state: dict[str, Any]) -> None:
        self._add_histogram(np.array(state["histogram"], np.int64))
        self._unknown += state["unknown"]

    def _add_histogram(self, histogram: NDArray[np.int64]) -> None:
        if len(histogram) > len(self._histogram):
            self._histogram, histogram = histogram, self._histogram
        self._histogram[:len(histogram)] += histogram

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
    """Return the smallest length that at least a share `q` of the sentences do not exceed."""
    cumulated = np.cumsum(histogram)
    return int(np.searchsorted(cumulated, math.ceil(q * int(cumulated[-1]))))
