"""The alignment error rate of links against those that people made (Och & Ney 2003).

A gold standard has sure links, and possible ones. With links A, sure ones S, and P the possible ones with the sure
ones: precision is |A & P| / |A|, recall |A & S| / |S|, and the error rate 1 - (|A & S| + |A & P|) / (|A| + |S|).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.alignment import Link

_GOLD = re.compile(r"(\d+)([-?p])(\d+)", re.ASCII)


class GoldLinks(NamedTuple):
    """The links of a sentence pair by people.

    Attributes:
        sure: nobody doubts them.
        possible: the sure ones, and those that may be.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass
class ErrorRate:
    """Counts over sentence pairs, and what follows from them.

    Attributes:
        links: |A|.
        sure: |S|.
        links_sure: |A & S|.
        links_possible: |A & P|.
        sentences: how many pairs were counted.
    """

    links: int = 0
    sure: int = 0
    links_sure: int = 0
    links_possible: int = 0
    sentences: int = 0

    def add(self, links: Iterable[Link], gold: GoldLinks) -> None:
        """Count a sentence pair."""
        found = set(links)
        self.links += len(found)
        self.sure += len(gold.sure)
        self.links_sure += len(found & gold.sure)
        self.links_possible += len(found & gold.possible)
        self.sentences += 1

    @property
    def precision(self) -> float:
        """The share of links that are possible, 0 to 1; 1 where there are none."""
        return self.links_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """The share of sure links that were found, 0 to 1; 1 where there are none."""
        return self.links_sure / self.sure if self.sure else 1.0

    @property
    def error_rate(self) -> float:
        """The alignment error rate, 0 to 1; 0 is best."""
        total = self.links + self.sure
        return 1.0 - (self.links_sure + self.links_possible) / total if total else 0.0

    def __str__(self) -> str:
        return (f"AER = {100 * self.error_rate:.2f}  precision = {100 * self.precision:.2f}  "
                f"recall = {100 * self.recall:.2f}  ({self.sentences:,} pairs, {self.links:,} links)")


def parse_gold(line: str, where: str, first: int = 0) -> GoldLinks:
    """The links of a line of a gold standard: `1-2` is sure, `1?2` or `1p2` is possible.

    Args:
        where: file and line, for the error.
        first: the number of the first word, 0 or 1.
    Raises:
        DataError: something else stands there.
    """
    sure, possible = set(), set()
    for item in line.split():
        match = _GOLD.fullmatch(item)
        link = (int(match[1]) - first, int(match[3]) - first) if match else (-1, -1)
        if match is None or min(link) < 0:
            raise DataError(f"{where}: '{item[:40]}' is no link: expected numbers of a source word and a target word, "
                            f"from {first}, as `3-4` (sure), `3?4` or `3p4` (possible).")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))
