"""Detect visible faults of translations, in any language."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.search.search_settings import SearchSettings

log = logging.getLogger(__name__)

EMPTY, LOOP, CUT = "empty", "loop", "cut"
FAULTS = {EMPTY: "empty", LOOP: "in a loop", CUT: "cut at the length limit"}
"""Descriptions of the faults, worst first."""
RETRY_ADVICE = "--retry repeats the search for them."
"""The advice about faulty translations of commands that have the option."""
COPIES, TOKENS = 4, 8
"""Minimum number of copies and of tokens in a loop."""
NGRAM, SHARE = 3, 0.3
"""Settings of a second search: length of n-grams that must not be repeated, and minimum length per source token."""


def fault_of(text: str, ids: Sequence[int], ended: bool, source: Callable[[], str]) -> str | None:
    """Return the worst fault of a translation, or None.

    Args:
        text: the translation.
        ids: its tokens, without EOS.
        ended: whether EOS ended it.
        source: returns the source text; called only if needed.
    """
    if not text:
        return EMPTY
    copies = most_copies(ids, TOKENS)
    if copies >= COPIES and copies > 2 * most_copies("".join(source().casefold().split()), 2):
        return LOOP
    return None if ended else CUT


def fault_of_text(text: str, source: str) -> str | None:
    """Return `EMPTY` or `LOOP` for a translation whose tokens are unknown, judged by its characters, or None."""
    return fault_of(text, [*map(ord, text)], True, lambda: source)


def most_copies(sequence: Sequence[Any], min_items: int) -> int:
    """Return the largest number of consecutive copies of any subsequence; 1 without repetition.

    Args:
        sequence: the items.
        min_items: minimum number of items in all copies together.
    """
    if not sequence:
        return 1
    max_copies = 1
    # A subsequence can be repeated only if one of its items is.
    for period in range(1, len(sequence) // 2 + 1 if max(Counter(sequence).values()) > 1 else 1):
        run = longest = 0
        for item, previous_item in zip(sequence[period:], sequence, strict=False):
            run = run + 1 if item == previous_item else 0
            longest = max(longest, run)
        if longest + period >= min_items:
            max_copies = max(max_copies, longest // period + 1)
    return max_copies


class FaultCounts:
    """Counts of the faults of lines.

    Args:
        name: name of the input, for the warning.
        advice: sentence at the end of the warning, on how to repeat the search; "" for none.

    Attributes:
        tokens: number of tokens of the best translations.
    """

    def __init__(self, name: str, advice: str = "") -> None:
        self._advice = advice
        self._name, self._lines, self._retried, self.tokens = name, 0, 0, 0
        self._counts: Counter[str] = Counter()
        self._first_lines: dict[str, int] = {}

    def add(self, number: int, translation: Translation) -> None:
        """Count the fault of a line."""
        self._lines += 1
        self._retried += translation.retried
        self.tokens += translation[0].tokens
        if (fault := translation[0].fault) is not None:
            self._counts[fault] += 1
            self._first_lines.setdefault(fault, number)

    def as_json(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {"lines": self._lines, "retried": self._retried, "counts": dict(self._counts),
                "first": self._first_lines}

    def merge(self, later_counts: Mapping[str, Any]) -> None:
        """Add the counts of later lines from `as_json`."""
        self._lines += later_counts["lines"]
        self._retried += later_counts["retried"]
        self._counts.update(later_counts["counts"])
        self._first_lines = {**later_counts["first"], **self._first_lines}

    def warn(self) -> None:
        """Log a warning with the counts, if there are faults."""
        fault_counts = ", ".join(f"{self._counts[fault]} {description} (the first: line {self._first_lines[fault]})"
                                 for fault, description in FAULTS.items() if self._counts[fault])
        if self._retried:
            log.warning("%s: the search was repeated for %d of %d faulty translations; remaining faults: %s.",
                        self._name, self._retried, self._lines, fault_counts or "none")
        elif fault_counts:
            log.warning("%s: %d of %d translations look wrong: %s.%s", self._name, sum(self._counts.values()),
                        self._lines, fault_counts, f" {self._advice}" if self._advice else "")


def counted(translations: Iterable[Translation], name: str, first: int = 1,
            counts: FaultCounts | None = None, advice: str = "") -> Iterator[Translation]:
    """Yield translations unchanged, and log the numbers of their faults at the end.

    Args:
        translations: translations of the lines.
        name: name of the input.
        first: number of the first line.
        counts: counter to use without logging; None means a new counter whose numbers are logged.
        advice: see `FaultCounts`.
    """
    faults = FaultCounts(name, advice) if counts is None else counts
    for number, translation in enumerate(translations, start=first):
        faults.add(number, translation)
        yield translation
    if counts is None:
        faults.warn()


def retry_settings(search: SearchSettings) -> dict[str, Any]:
    """Return the changed settings of a second search for faulty translations.

    Repeated trigrams are forbidden, which ends loops (Paulus et al. 2018). The minimum length is three tenths of the
    source length, which is less than that of translations between most languages.

    Args:
        search: settings of the first search; stricter settings are kept.
    """
    ngram = search.no_repeat_ngram
    return {"no_repeat_ngram": min(ngram, NGRAM) if ngram else NGRAM, "min_length": max(search.min_length, 1),
            "min_length_factor": min(max(search.min_length_factor, SHARE), search.max_length_factor)}


def worse(fault: str | None, other_fault: str | None) -> bool:
    """Return whether one fault is worse than another; None means no fault."""
    order = [*FAULTS, None]
    return order.index(fault) < order.index(other_fault)
