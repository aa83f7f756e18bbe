"""One text file with a pair on each line: tab-separated columns (TSV), or JSON objects (JSONL)."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.formats.file_source import FileSource, Group, cursors, pairs
from towernmt.dataflow.sources.formats.lines import count_lines, line_blocks
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.storage.stored_files import Storage

_SURROGATE = re.compile("[\ud800-\udfff]")     # JSON can hold one, but UTF-8 cannot


class NoPairError(Exception):
    """A line holds no pair; the message says what it lacks."""


class PairLines(FileSource):
    """A pair a line; a place is (lines before it, byte offset in the text).

    Args:
        name: see `Source`.
        storage: where the files are.
        pattern: which ones.
        missing: "error", or "skip" for lines that lack a side.
    """

    start = (0, 0)
    header_lines = 0

    def __init__(self, name: str, storage: Storage, pattern: str, missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.skips = missing == "skip"

    @abstractmethod
    def parse(self, text: str) -> Pair:
        """The pair of a line.

        Raises:
            NoPairError: the line lacks a side.
            ValueError: the line is not in this format.
        """

    def parse_all(self, texts: Sequence[str]) -> list[Pair] | None:
        """The pairs of several lines, faster than one by one; None if any of the lines is an error."""
        try:
            return [self.parse(text) for text in texts]
        except (NoPairError, ValueError):
            return None

    def _read(self, head: Sequence[object], group: Group, place: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        line, offset = place
        for texts, ends in line_blocks(self.storage, group[0], offset, line):
            first = max(0, self.header_lines - line)
            parsed = self.parse_all(texts[first:])
            numbers = range(line + first + 1, line + len(texts) + 1)
            if parsed is not None:
                yield from zip(cursors(head, numbers, ends[first:]), parsed, strict=True)
            else:
                for number, end, text in zip(numbers, ends[first:], texts[first:], strict=True):
                    pair = self._parsed(f"{group[0].name} line {number}", text)
                    if pair is not None:
                        yield [*head, number, end], pair
            line += len(texts)

    def _parsed(self, place: str, text: str) -> Pair | None:
        try:
            return self.parse(text)
        except NoPairError as error:
            if self.skips:
                return None
            raise DataError(f"{place}: {error}. Mend the line, or pass over such lines with missing=skip.") from None
        except ValueError as error:
            raise DataError(f"{place}: {error}. Mend the line, or check the format.") from None

    def _count(self, group: Group) -> int:
        if self.skips:
            return super()._count(group)
        return max(0, count_lines(self.storage, group[0]) - self.header_lines)


class TabSeparated(PairLines):
    """Columns between tabs, without quotes.

    Args:
        name: see `Source`.
        storage: where the files are.
        pattern: which ones.
        columns: the columns of source and target, from 0.
        header: whether the first line of each file names the columns and is no pair.
        missing: see `PairLines`.
    """

    def __init__(self, name: str, storage: Storage, pattern: str, columns: tuple[int, int] = (0, 1),
                 header: bool = False, missing: str = "error") -> None:
        super().__init__(name, storage, pattern, missing)
        self.columns = columns
        self.header_lines = int(header)

    def parse(self, text: str) -> Pair:
        """See `PairLines.parse`."""
        fields = text.split("\t")
        if len(fields) <= max(self.columns):
            raise NoPairError(f"it has {len(fields)} tab-separated column{'s' * (len(fields) > 1)}, but column "
                              f"{max(self.columns)} (counted from 0) is asked for")
        return Pair(fields[self.columns[0]], fields[self.columns[1]])

    def parse_all(self, texts: Sequence[str]) -> list[Pair] | None:
        """See `PairLines.parse_all`."""
        source, target = self.columns
        try:
            rows = [text.split("\t") for text in texts]
            return list(pairs([row[source] for row in rows], [row[target] for row in rows]))
        except IndexError:
            return None


class JsonLines(PairLines):
    """A JSON object a line.

    Args:
        name: see `Source`.
        storage: where the files are.
        pattern: which ones.
        source: the field with the source text; "a.b" is the field b of the object in field a.
        target: the field with the target text.
        missing: see `PairLines`.
    """

    def __init__(self, name: str, storage: Storage, pattern: str, source: str = "source", target: str = "target",
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern, missing)
        self.fields = source, target

    def parse(self, text: str) -> Pair:
        """See `PairLines.parse`."""
        if not text.strip():
            raise NoPairError("the line is empty")
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON ({error.msg} at character {error.pos + 1})") from None
        except RecursionError:
            raise ValueError("it is JSON that is nested too deeply") from None
        if not isinstance(record, dict):
            raise ValueError("it is JSON, but not an object with fields")
        pair = Pair(_field(record, self.fields[0]), _field(record, self.fields[1]))
        if "\\u" in text and _SURROGATE.search(" ".join(pair)):
            raise ValueError(r"an escape \ud800 to \udfff stands alone, which is half of a character")
        return pair


def _field(record: dict[str, Any], name: str) -> str:
    value: Any = record
    for part in [name] if name in record else name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        raise NoPairError(f"there is no text in the field '{name}' (the fields are: {', '.join(record) or 'none'})")
    if not isinstance(value, str):
        raise ValueError(f"the field '{name}' holds no text, but {type(value).__name__}")
    return value
