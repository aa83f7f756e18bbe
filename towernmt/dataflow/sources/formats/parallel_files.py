"""Two parallel texts: line n of one is the translation of line n of the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.formats.file_source import FileSource, Group, cursors, pairs
from towernmt.dataflow.sources.formats.lines import LineBlock, count_lines, line_blocks
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.storage.stored_files import Storage, StoredFile

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def has_braces(pattern: str) -> bool:
    """Whether a pattern names two sides, as `x.{de,en}` does."""
    return _BRACES.search(pattern) is not None


def expand_braces(pattern: str) -> tuple[str, str]:
    """The pattern of the source side and that of the target side: all first and all second alternatives.

    Raises:
        SettingsError: braces that do not hold exactly two alternatives.
    """
    for match in _BRACES.finditer(pattern):
        if match[1].count(",") != 1:
            raise SettingsError(f"{pattern}: {match[0]} must name exactly two sides, source and target, "
                                "as x.{de,en} does.")
    return (_BRACES.sub(lambda match: match[1].split(",")[0], pattern),
            _BRACES.sub(lambda match: match[1].split(",")[1], pattern))


class ParallelFiles(FileSource):
    """Pairs of files; a place is (lines before it, byte offset in the source text, byte offset in the target text)."""

    start = (0, 0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str) -> None:
        super().__init__(name, storage, pattern)
        self.sides = expand_braces(pattern)

    def _groups(self) -> list[Group]:
        left, right = (self.storage.list(side) for side in self.sides)
        if len(left) == len(right) == 1 and (left[0].name == self.sides[0] or right[0].name == self.sides[1]):
            return [(left[0], right[0])]
        return self._paired(left, right)

    def _paired(self, left: Sequence[StoredFile], right: Sequence[StoredFile]) -> list[Group]:
        """Pairs of files whose wildcards match the same text, in the order of the source files."""
        sources = {_wildcards(self.sides[0], file.name): file for file in left}
        targets = {_wildcards(self.sides[1], file.name): file for file in right}
        for alone, files, side in ((sources.keys() - targets.keys(), sources, self.sides[1]),
                                   (targets.keys() - sources.keys(), targets, self.sides[0])):
            if alone:
                raise DataError(f"{min(files[key].name for key in alone)}: no file of the other side ({side}) pairs "
                                "up with it. Add that file or take this one away.")
        return [(file, targets[key]) for key, file in sources.items()]

    def _read(self, head: Sequence[object], group: Group, place: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        line, *offsets = place
        left, right = (line_blocks(self.storage, file, offset, line)
                       for file, offset in zip(group, offsets, strict=True))
        a = b = LineBlock([], [])
        while True:
            a, b = _filled(a, left), _filled(b, right)
            n = min(len(a.texts), len(b.texts))
            if not n:
                break
            yield from zip(cursors(head, range(line + 1, line + n + 1), a.ends[:n], b.ends[:n]),
                           pairs(a.texts[:n], b.texts[:n]), strict=True)
            line += n
            a, b = _after(a, n), _after(b, n)
        if a.texts or b.texts:
            short, long = (group[1], group[0]) if a.texts else group
            raise DataError(f"{short.name} ends at line {line}, but {long.name} goes on: line n of one must be the "
                            "translation of line n of the other. Look for a missing or an extra line.")

    def _count(self, group: Group) -> int:
        lines = [count_lines(self.storage, file) for file in group]
        if lines[0] != lines[1]:
            raise DataError(f"{group[0].name} has {lines[0]} lines, but {group[1].name} has {lines[1]}: line n of one "
                            "must be the translation of line n of the other. Look for a missing or an extra line.")
        return lines[0]


def _filled(block: LineBlock, more: Iterator[LineBlock]) -> LineBlock:
    return block if block.texts else next(more, block)


def _after(block: LineBlock, n: int) -> LineBlock:
    return LineBlock(block.texts[n:], block.ends[n:])


def _wildcards(pattern: str, name: str) -> tuple[str, ...]:
    """The texts that the wildcards of a pattern match in a name."""
    pieces = re.split(r"(\*\*/|\*+|\?|\[!?\]?[^]]*\])", pattern)
    expression = "".join(_wildcard(piece) if i % 2 else re.escape(piece).replace("//", "/+")    # listings have one
                         for i, piece in enumerate(pieces))
    match = re.search(expression + r"\Z", name, re.DOTALL)
    return match.groups() if match else (name,)


def _wildcard(piece: str) -> str:
    if piece == "**/":
        return "((?:.*/)?)"
    return "(.*)" if piece.startswith("*") else "(.)"        # the listing has already checked which character it is
