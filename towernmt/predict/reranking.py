"""Reranking of the hypotheses of lines, and n-best files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import groupby, islice

from towernmt.core.errors import DataError
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.stream import read_window

_LINK = re.compile(r"\d+-\d+")
_FEATURE = re.compile(r"\S+[=:]|[-+]?(?:[\d.]+(?:e[-+]?\d+)?|inf|nan)", re.IGNORECASE)
"""A name or a value of the scores of Moses, as in `LM= -3.5 TM= -4`."""
WINDOW = 500
"""Number of lines that are reranked together."""


class Reranker(ABC):
    """A function that reorders the hypotheses of lines."""

    @abstractmethod
    def __call__(self, sources: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line with their new scores, best first."""


def rescored(hypothesis: Hypothesis, score: float) -> Hypothesis:
    """Return the hypothesis with a new score."""
    return hypothesis.replaced(score=float(score))


def reranked(lists: Iterable[list[Hypothesis]], reranker: Reranker, sources: Iterable[str] | None = None,
             window: int = WINDOW, name: str = "the source", stream_window: int | None = None) -> Iterator[Translation]:
    """Yield the reranked hypotheses of each line. The lists before one that cannot be read precede the error.

    Args:
        lists: the hypotheses of each line.
        reranker: the reranker.
        sources: source lines; None if the reranker does not read them.
        window: maximum number of lines that are reranked together.
        name: name of the source, for errors.
        stream_window: number of lines of a window of `lists`, whose lines are reranked before the next window is read;
            None if `lists` has no windows.

    Raises:
        DataError: the numbers of lines and lists differ.
    """
    remaining_lists, source_lines, number = iter(lists), iter(sources if sources is not None else ()), 0
    error: DataError | None = None
    while error is None:
        size = window if stream_window is None else min(window, stream_window - number % stream_window)
        window_lists, error = read_window(remaining_lists, size)
        if not window_lists:
            break
        window_sources = [""] * len(window_lists) if sources is None else list(islice(source_lines, len(window_lists)))
        if len(window_sources) < len(window_lists):
            raise DataError(f"{name} has {number + len(window_sources)} lines, but there are n-best lists of more: "
                            "pass the text that was translated.")
        yield from map(_in_order, window_lists, reranker(window_sources, window_lists))
        number += len(window_lists)
    if error is not None:
        raise error
    if next(source_lines, None) is not None:
        raise DataError(f"There are n-best lists of {number} lines, but {name} has more: pass the text that was "
                        "translated.")


def _in_order(original: list[Hypothesis], hypotheses: list[Hypothesis]) -> Translation:
    """Return the hypotheses as a translation with the attributes of the previous one."""
    result = copy(original) if isinstance(original, Translation) else Translation()
    result[:] = hypotheses
    return result


def read_nbest(lines: Iterable[str], name: str) -> Iterator[list[Hypothesis]]:
    """Yield the hypotheses of each source line from the lines of an n-best file, which are numbered from 0.

    Lines have the form `number ||| text ||| score` or `number ||| text ||| features ||| score`, with word alignments
    after them or without. The text may contain `|||`.

    Args:
        lines: lines of the file.
        name: name of the file, for errors.

    Raises:
        DataError: a line is not valid, or a number is missing.
    """
    entries = (_entry(line, name, line_number) for line_number, line in enumerate(lines, start=1))
    for expected, (number, group) in enumerate(groupby(entries, key=lambda entry: entry[0])):
        if number != expected:
            raise DataError(f"{name}: the hypotheses of line {number} are where those of line {expected} are expected: "
                            "every line of the source must have some, in order and numbered from 0.")
        yield [hypothesis for _, hypothesis in group]


def _entry(line: str, name: str, line_number: int) -> tuple[int, Hypothesis]:
    number, *fields = line.split("|||")
    try:
        if all(map(_LINK.fullmatch, fields[-1].split())):
            fields.pop()
        score = float(fields.pop())
        if len(fields) > 1 and all(map(_FEATURE.fullmatch, fields[-1].split())):
            fields.pop()
        if not fields:
            raise ValueError("no text")
        return int(number), Hypothesis("|||".join(fields).strip(), score)
    except (ValueError, IndexError):
        raise DataError(f"{name} line {line_number} is not `number ||| text ||| score`, as `towernmt translate "
                        "--n-best` writes it.") from None
