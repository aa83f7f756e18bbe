"""Counting while a corpus is encoded: lengths, their ratio, unknown tokens, and what was dropped and why."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.prepare.chunk_encoder import EncodedChunk
from towernmt.dataflow.prepared.corpus_statistics import lines_in_words
from towernmt.dataflow.prepared.pair_lengths import PairLengths
from towernmt.dataflow.text.filters.pair_filter import DROP_REASONS, LENGTH_REASONS
from towernmt.dataflow.vocabulary.base import UNK

_EXAMPLES = 5


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
        self._width = max_length + 1
        self._pair_lengths: Counter[int] = Counter()  # source length * width + target length
        self._lines = 0
        self._pairs = 0
        self._sides = {"source": _SideCounter(max_length), "target": _SideCounter(max_length)}
        self._ratios: list[tuple[float, float]] = []    # of each chunk the sum and that of the squares
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
        codes, counts = np.unique(chunk.source_lengths.astype(np.int64) * self._width + chunk.target_lengths,
                                  return_counts=True)
        self._pair_lengths.update(dict(zip(codes.tolist(), counts.tolist(), strict=True)))
        ratios = chunk.source_lengths / chunk.target_lengths
        self._ratios.append((float(ratios.sum()), float(np.square(ratios).sum())))
        for reason, lines in chunk.dropped.items():
            self._drop(reason, len(lines), lines[:_EXAMPLES].tolist())

    def state(self) -> dict[str, Any]:
        """What was counted, as JSON; see `merge`."""
        return {
            "lines": self._lines, "pairs": self._pairs, "dropped": self._dropped, "ratios": self._ratios,
            "sides": {name: side.state() for name, side in self._sides.items()},
            "unknown_factors": self._unknown_factors, "links": self._links,
            "pair_lengths": [list(self._pair_lengths), list(self._pair_lengths.values())]}

    def merge(self, state: dict[str, Any]) -> None:
        """Add what another object counted in the chunks that follow.

        Sums of fractions are kept chunk by chunk and added up in their order, so that not even the last digit depends
        on how the chunks were divided.
        """
        self._lines += state["lines"]
        self._pairs += state["pairs"]
        for name, side in self._sides.items():
            side.merge(state["sides"][name])
        self._unknown_factors = [sum(both) for both in zip(self._unknown_factors, state["unknown_factors"],
                                                           strict=True)]
        if self._links is not None:
            self._links = {name: count + state["links"][name] for name, count in self._links.items()}
        self._pair_lengths.update(dict(zip(*state["pair_lengths"], strict=True)))
        self._ratios += [(first, second) for first, second in state["ratios"]]
        for reason, other in state["dropped"].items():
            self._drop(reason, other["pairs"], other["first_lines"])

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
        return PairLengths(*np.divmod(codes, self._width), counts)

    def dropped_in_words(self) -> str:
        """For example "12 empty source (lines 4, 9, ...), 3 long target (lines 7, 8, 20)"."""
        return ", ".join(f"{entry['pairs']:,} {reason} ({lines_in_words(entry)})"
                         for reason, entry in self._dropped.items() if entry["pairs"]) or "none"

    def to_json(self) -> dict[str, Any]:
        """The content of `statistics.json`.

        `length_histogram[n]` is the number of sentences with n tokens; the deviation is that of the whole
        population. `source_factors` and `alignments` (links of pieces, and pairs with links) are there if the corpus
        has them.
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
    def __init__(self, max_length: int) -> None:
        self._histogram: NDArray[np.int64] = np.zeros(max_length + 1, np.int64)
        self._unknown = 0

    def add(self, lengths: NDArray[np.int32], ids: NDArray[np.integer]) -> None:
        self._histogram += np.bincount(lengths, minlength=len(self._histogram))
        self._unknown += int(np.count_nonzero(ids == UNK))

    def state(self) -> dict[str, Any]:
        return {"histogram": self._histogram.tolist(), "unknown": self._unknown}

    def merge(self, state: dict[str, Any]) -> None:
        self._histogram += np.array(state["histogram"], np.int64)
        self._unknown += state["unknown"]

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
