"""Tables of text in columns of equal width, for terminals and text files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def align_columns(rows: Iterable[Sequence[str]], alignment: str = "<>") -> list[str]:
    """Return one line for each row, with the cells of each column padded to the same width.

    Two spaces separate the columns. Spaces at the end of a line are removed.

    Args:
        rows: the cells of each row, the same number in each.
        alignment: for each column, "<" to align its cells to the left or ">" to align them to the right; the last
            character also applies to all further columns.
    """
    rows = list(rows)
    count = max(map(len, rows), default=0)
    directions = alignment.ljust(count, alignment[-1])[:count]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{direction}{width}}" for cell, direction, width in
                      zip(row, directions, widths, strict=True)).rstrip() for row in rows]
