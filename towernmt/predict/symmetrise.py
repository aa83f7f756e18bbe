"""Symmetrisation of word alignments (Koehn, Och & Marcu 2003) and alignment error rate (Och & Ney 2003)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.pharaoh_alignments import Link

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrised(forward: Iterable[Link], backward: Iterable[Link], method: str) -> list[Link]:
    """Return one alignment from those of both directions.

    Args:
        forward: links of the model from source to target, which has a link for each target word.
        backward: links of the model from target to source, also as (source word, target word).
        method: one of `METHODS`.

    Returns:
        links, sorted.

    Raises:
        SettingsError: an unknown method.
    """
    if method not in METHODS:
        raise SettingsError(f"symmetrise={method}: choose one of {', '.join(METHODS)}.")
    return sorted(METHODS[method](set(forward), set(backward)))


def _grow_diag(forward: set[Link], backward: set[Link]) -> set[Link]:
    union, links = sorted(forward | backward, key=_by_target), forward & backward
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    previous_size = -1
    while previous_size < len(links):
        previous_size = len(links)
        for link in union:
            if link not in links:
                continue
            for source_step, target_step in _NEIGHBOURS:
                neighbour = link[0] + source_step, link[1] + target_step
                if neighbour not in links and (neighbour in forward or neighbour in backward) and (
                        neighbour[0] not in sources or neighbour[1] not in targets):
                    links.add(neighbour)
                    sources.add(neighbour[0])
                    targets.add(neighbour[1])
    return links


def _final(links: set[Link], directions: Sequence[set[Link]], rule: Callable[[Iterable[bool]], bool]) -> set[Link]:
    """Return links, and further ones of which any or all (`rule`) of the two words have no link yet."""
    links = set(links)
    sources, targets = {source for source, _ in links}, {target for _, target in links}
    for direction in directions:
        for source, target in sorted(direction, key=_by_target):
            if rule((source not in sources, target not in targets)):
                links.add((source, target))
                sources.add(source)
                targets.add(target)
    return links


def _by_target(link: Link) -> Link:
    """Return the sort key of Moses: the order of the target words."""
    return link[1], link[0]


METHODS: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": _grow_diag,
    "grow-diag-final": lambda forward, backward: _final(_grow_diag(forward, backward), (forward, backward), any),
    "grow-diag-final-and": lambda forward, backward: _final(_grow_diag(forward, backward), (forward, backward), all),
}
"""Functions from the links of both directions to the symmetrised links, by their names."""


_GOLD = re.compile(r"(\d{1,18})([-?p])(\d{1,18})", re.ASCII)      # Python refuses thousands of digits


class GoldLinks(NamedTuple):
    """Manual word alignments of a sentence pair.

    Attributes:
        sure: certain links.
        possible: sure links and uncertain ones.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass
class ErrorRate:
    """Counts over sentence pairs, and the alignment error rate.

    Attributes:
        links: |A|.
        sure: |S|.
        links_sure: |A & S|.
        links_possible: |A & P|.
        sentences: number of sentence pairs.
    """

    links: int = 0
    sure: int = 0
    links_sure: int = 0
    links_possible: int = 0
    sentences: int = 0

    def add(self, links: Iterable[Link], gold: GoldLinks) -> None:
        """Count a sentence pair."""
        predicted = set(links)
        self.links += len(predicted)
        self.sure += len(gold.sure)
        self.links_sure += len(predicted & gold.sure)
        self.links_possible += len(predicted & gold.possible)
        self.sentences += 1

    @property
    def precision(self) -> float:
        """Share of links that are possible, 0 to 1; 1 without links."""
        return self.links_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """Share of sure links that were found, 0 to 1; 1 without sure links."""
        return self.links_sure / self.sure if self.sure else 1.0

    @property
    def error_rate(self) -> float:
        """Alignment error rate, 0 to 1; 0 is best."""
        total = self.links + self.sure
        return 1.0 - (self.links_sure + self.links_possible) / total if total else 0.0

    def __str__(self) -> str:
        return (f"AER = {100 * self.error_rate:.2f}  precision = {100 * self.precision:.2f}  "
                f"recall = {100 * self.recall:.2f}  ({self.sentences:,} pairs, {self.links:,} links)")


def parse_gold(line: str, where: str, first: int = 0) -> GoldLinks:
    """Parse a line of a gold standard: `1-2` is sure, `1?2` or `1p2` is possible.

    Args:
        line: the line.
        where: file and line, for the error.
        first: number of the first word, 0 or 1.

    Raises:
        DataError: the line is not valid.
    """
    sure, possible = set(), set()
    for item in line.split():
        match = _GOLD.fullmatch(item)
        link = (int(match[1]) - first, int(match[3]) - first) if match else (-1, -1)
        if match is None or min(link) < 0:
            raise DataError(f"{where}: '{item[:40]}' is not a link: expected numbers of a source and a target word, "
                            f"from {first}, as `3-4` (sure), `3?4` or `3p4` (possible).")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))
