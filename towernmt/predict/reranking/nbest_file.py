"""Files of n-best lists as Moses and `towernmt translate --n-best` write them: `number ||| text ||| score` a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from towernmt.core.errors import DataError
from towernmt.predict.hypotheses import Hypothesis


def read_nbest(lines: Iterable[str], name: str) -> Iterator[list[Hypothesis]]:
    """The hypotheses of each line of the source, which are numbered from 0.

    Of a line with features, `number ||| text ||| features ||| score`, the score is taken.

    Args:
        name: of the file, for errors.
    Raises:
        DataError: a line is not of this form, or a number is left out.
    """
    entries = (_entry(line, name, place) for place, line in enumerate(lines, start=1))
    for expected, (number, group) in enumerate(groupby(entries, key=lambda entry: entry[0])):
        if number != expected:
            raise DataError(f"{name}: the hypotheses of line {number} follow those of line {expected - 1}: every line "
                            "of the source must have some, in order and numbered from 0.")
        yield [hypothesis for _, hypothesis in group]


def _entry(line: str, name: str, place: int) -> tuple[int, Hypothesis]:
    fields = [field.strip() for field in line.split("|||")]
    try:
        return int(fields[0]), Hypothesis(fields[1], float(fields[2] if len(fields) == 3 else fields[3]))
    except (ValueError, IndexError):
        raise DataError(f"{name} line {place} is not `number ||| text ||| score`, as `towernmt translate --n-best` "
                        "writes it.") from None
