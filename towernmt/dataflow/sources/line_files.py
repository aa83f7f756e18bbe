r"""Text files with a pair on each line: two parallel files, tab-separated columns (TSV), and JSON objects (JSONL).

`line_blocks` reads the lines of a stored text from any byte on, block by block, by the rules of
`dataflow.text.text_lines`: UTF-8, lines end at "\n" alone, a "\r" before it belongs to the line end, a byte order
mark at the start is skipped, and a last line without "\n" counts.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.source import Cursor, FileSource, Group, Pair, zip_cursors, zip_pairs
from towernmt.dataflow.storage.stored_files import Storage, StoredFile, UnreadableError, read_bytes
from towernmt.dataflow.text.text_lines import LONGEST_LINE, Chunk, line_too_long

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def has_braces(pattern: str) -> bool:
    """Return whether a pattern names two sides, as `x.{de,en}` does."""
    return _BRACES.search(pattern) is not None


def expand_braces(pattern: str) -> tuple[str, str]:
    """Return the patterns of the source and target sides: all first and all second alternatives of the braces.

    Raises:
        SettingsError: braces do not contain exactly two alternatives.
    """
    for match in _BRACES.finditer(pattern):
        if match[1].count(",") != 1:
            raise SettingsError(f"{pattern}: {match[0]} must name exactly two sides, source and target, "
                                "as x.{de,en} does.")
    return (_BRACES.sub(lambda match: match[1].split(",")[0], pattern),
            _BRACES.sub(lambda match: match[1].split(",")[1], pattern))


class ParallelFiles(FileSource):
    """Pairs of parallel files. A position is (lines before it, byte offset in the source, byte offset in the target).

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, with both sides in braces, and possibly with wildcards.
    """

    start = (0, 0, 0)

    def __init__(self, name: str, storage: Storage, pattern: str) -> None:
        super().__init__(name, storage, pattern)
        self.sides = expand_braces(pattern)

    def _groups(self) -> list[Group]:
        sources, targets = (self.storage.list(side) for side in self.sides)
        if len(sources) == len(targets) == 1 and (sources[0].name == self.sides[0] or targets[0].name == self.sides[1]):
            return [(sources[0], targets[0])]
        return self._paired(sources, targets)

    def _paired(self, source_files: Sequence[StoredFile], target_files: Sequence[StoredFile]) -> list[Group]:
        """Return the pairs of files whose wildcards match the same text, in the order of the source files."""
        sources = {_wildcards(self.sides[0], file.name): file for file in source_files}
        targets = {_wildcards(self.sides[1], file.name): file for file in target_files}
        for alone, files, side in ((sources.keys() - targets.keys(), sources, self.sides[1]),
                                   (targets.keys() - sources.keys(), targets, self.sides[0])):
            if alone:
                raise DataError(f"{min(files[key].name for key in alone)}: the matching file of the other side "
                                f"({side}) is missing. Add that file, or remove this one.")
        return [(file, targets[key]) for key, file in sources.items()]

    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        line, *offsets = position
        source_blocks, target_blocks = (line_blocks(self.storage, file, offset, line)
                                        for file, offset in zip(group, offsets, strict=True))
        source = target = LineBlock([], [])
        while True:
            source, target = _block_with_lines(source, source_blocks), _block_with_lines(target, target_blocks)
            count = min(len(source.texts), len(target.texts))
            if not count:
                break
            lines = range(line + 1, line + count + 1)
            yield from zip(zip_cursors(head, lines, source.ends[:count], target.ends[:count]),
                           zip_pairs(source.texts[:count], target.texts[:count]), strict=True)
            line += count
            source, target = _lines_after(source, count), _lines_after(target, count)
        if source.texts or target.texts:
            short, long = (group[1], group[0]) if source.texts else group
            raise DataError(f"{short.name} ends at line {line}, but {long.name} has more lines. Line n of one file "
                            "must be the translation of line n of the other: look for a missing or an extra line.")

    def _count(self, group: Group) -> int:
        lines = [count_lines(self.storage, file) for file in group]
        if lines[0] != lines[1]:
            raise DataError(f"{group[0].name} has {lines[0]} lines, but {group[1].name} has {lines[1]}. Line n of one "
                            "file must be the translation of line n of the other: look for a missing or an extra line.")
        return lines[0]


def _block_with_lines(block: LineBlock, following: Iterator[LineBlock]) -> LineBlock:
    return block if block.texts else next(following, block)


def _lines_after(block: LineBlock, n: int) -> LineBlock:
    return LineBlock(block.texts[n:], block.ends[n:])


def _wildcards(pattern: str, name: str) -> tuple[str, ...]:
    """Return the texts that the wildcards of a pattern match in a name."""
    components = re.split(r"(\*\*/|\*+|\?|\[!?\]?[^]]*\])", pattern)    # literal text and wildcards in turn
    expression = "".join(_wildcard(component) if i % 2 else re.escape(component).replace("//", "/+")  # listings have /
                         for i, component in enumerate(components))
    match = re.search(expression + r"\Z", name, re.DOTALL)
    return match.groups() if match else (name,)


def _wildcard(wildcard: str) -> str:
    if wildcard == "**/":
        return "((?:.*/)?)"
    return "(.*)" if wildcard.startswith("*") else "(.)"        # the listing has already checked the character


class LineBlock(NamedTuple):
    """Consecutive lines of a text.

    Attributes:
        texts: the lines without their line ends.
        ends: for each line, the byte offset after it in the (decompressed) text.
    """

    texts: list[str]
    ends: list[int]


def line_blocks(storage: Storage, file: StoredFile, offset: int = 0, lines: int = 0) -> Iterator[LineBlock]:
    """Yield the lines after byte `offset` of the (decompressed) text, in blocks of one line or more.

    Args:
        storage: gives access to the file.
        file: the file.
        offset: byte offset of the beginning of a line.
        lines: number of lines before it, for messages.

    Raises:
        DataError: the file is missing, changed, damaged, truncated, or not UTF-8; the message names the line. The lines
            before it are yielded first.
    """
    for data in whole_lines(storage, file, offset, lines):
        try:
            texts = Chunk(file.name, lines + 1, 0, data).decode()
        except DataError:
            good = _lines_before_an_error(data)
            if good:
                yield LineBlock(Chunk(file.name, lines + 1, 0, good).decode(), _line_ends(good, offset))
            raise
        yield LineBlock(texts, _line_ends(data, offset))
        offset += len(data)
        lines += len(texts)


def count_lines(storage: Storage, file: StoredFile) -> int:
    """Return the number of lines of a text, without decoding them.

    Raises:
        DataError: the file is missing, changed, damaged or truncated.
    """
    lines, last = 0, b"\n"
    try:
        for data in read_bytes(storage, file):
            lines += data.count(b"\n")
            last = data[-1:]
    except UnreadableError as error:
        raise error.at(f"{file.name} near line {lines + 1}") from error
    return lines + (last != b"\n")


def whole_lines(storage: Storage, file: StoredFile, offset: int, lines: int) -> Iterator[bytes]:
    """Yield the bytes after byte `offset` of the (decompressed) text, in blocks of complete lines.

    Args:
        storage: gives access to the file.
        file: the file.
        offset: byte offset of the beginning of a line.
        lines: number of lines before it, for messages.

    Raises:
        DataError: the file is missing, changed, damaged or truncated, or a line is longer than `LONGEST_LINE`.
    """
    unfinished: list[bytes] = []        # the beginning of the line whose end has not been read
    unfinished_bytes = 0
    try:
        for data in read_bytes(storage, file, offset):
            cut = data.rfind(b"\n") + 1
            if cut:
                block = b"".join([*unfinished, data[:cut]])
                unfinished, unfinished_bytes = [], 0
                lines += block.count(b"\n")
                yield block
            unfinished.append(data[cut:])
            unfinished_bytes += len(data) - cut
            if unfinished_bytes > LONGEST_LINE:
                raise line_too_long(f"{file.name} line {lines + 1}")
    except UnreadableError as error:
        raise error.at(f"{file.name} near line {lines + 1}") from error
    if unfinished_bytes:
        yield b"".join(unfinished)


def _lines_before_an_error(data: bytes) -> bytes:
    """Return the complete lines before the first byte that is not UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[:data.rfind(b"\n", 0, error.start) + 1]
    return data


def _line_ends(data: bytes, offset: int) -> list[int]:
    ends: list[int] = (np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + (offset + 1)).tolist()
    if not data.endswith(b"\n"):
        ends.append(offset + len(data))
    return ends


_SURROGATE = re.compile("[\ud800-\udfff]")     # JSON can hold one, but UTF-8 cannot


class NoPairError(Exception):
    """A line lacks a side of the pair; the message describes what is missing."""


class PairLines(FileSource):
    """Base class of formats with one pair a line. A position is (lines before it, byte offset in the text).

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        missing: "error" to refuse, or "skip" to skip lines that lack a side.
    """

    start = (0, 0)
    header_lines = 0

    def __init__(self, name: str, storage: Storage, pattern: str, missing: str = "error") -> None:
        super().__init__(name, storage, pattern)
        self.skips = missing == "skip"

    @abstractmethod
    def parse(self, text: str) -> Pair:
        """Return the pair of a line.

        Raises:
            NoPairError: the line lacks a side.
            ValueError: the line is not in this format.
        """

    def parse_all(self, texts: Sequence[str]) -> list[Pair] | None:
        """Return the pairs of several lines, or None if a line is not valid. Faster than `parse` for each line."""
        try:
            return [self.parse(text) for text in texts]
        except (NoPairError, ValueError):
            return None

    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        line, offset = position
        for texts, ends in line_blocks(self.storage, group[0], offset, line):
            first = max(0, self.header_lines - line)
            parsed = self.parse_all(texts[first:])
            numbers = range(line + first + 1, line + len(texts) + 1)
            if parsed is not None:
                yield from zip(zip_cursors(head, numbers, ends[first:]), parsed, strict=True)
            else:
                for number, end, text in zip(numbers, ends[first:], texts[first:], strict=True):
                    pair = self._parse_or_skip(f"{group[0].name} line {number}", text)
                    if pair is not None:
                        yield [*head, number, end], pair
            line += len(texts)

    def _parse_or_skip(self, line_name: str, text: str) -> Pair | None:
        try:
            return self.parse(text)
        except NoPairError as error:
            if self.skips:
                return None
            raise DataError(f"{line_name}: {error}. Fix the line, or skip such lines with missing=skip.") from None
        except ValueError as error:
            raise DataError(f"{line_name}: {error}. Fix the line, or check the format.") from None

    def _count(self, group: Group) -> int:
        if self.skips:
            return super()._count(group)
        return max(0, count_lines(self.storage, group[0]) - self.header_lines)


class TabSeparated(PairLines):
    """Files with tab-separated columns, without quotes.

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        columns: indices of the source and target columns, from 0.
        header: whether the first line of each file is a header.
        missing: see `PairLines`.
    """

    def __init__(self, name: str, storage: Storage, pattern: str, columns: tuple[int, int] = (0, 1),
                 header: bool = False, missing: str = "error") -> None:
        super().__init__(name, storage, pattern, missing)
        self.columns = columns
        self.header_lines = int(header)

    def parse(self, text: str) -> Pair:
        """Return two columns of a line; see `PairLines.parse`."""
        fields = text.split("\t")
        if len(fields) <= max(self.columns):
            raise NoPairError(f"the line has {len(fields)} tab-separated column{'s' * (len(fields) > 1)}, but column "
                              f"{max(self.columns)} (counted from 0) is requested")
        return Pair(fields[self.columns[0]], fields[self.columns[1]])

    def parse_all(self, texts: Sequence[str]) -> list[Pair] | None:
        """Return two columns of several lines; see `PairLines.parse_all`."""
        source, target = self.columns
        try:
            rows = [text.split("\t") for text in texts]
            return list(zip_pairs([row[source] for row in rows], [row[target] for row in rows]))
        except IndexError:
            return None


class JsonLines(PairLines):
    """Files with one JSON object a line.

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        source: name of the field with the source text; "a.b" is field b of the object in field a.
        target: name of the field with the target text.
        missing: see `PairLines`.
    """

    def __init__(self, name: str, storage: Storage, pattern: str, source: str = "source", target: str = "target",
                 missing: str = "error") -> None:
        super().__init__(name, storage, pattern, missing)
        self.fields = source, target

    def parse(self, text: str) -> Pair:
        """Return two fields of a JSON object; see `PairLines.parse`."""
        if not text.strip():
            raise NoPairError("the line is empty")
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the line is not JSON ({error.msg} at character {error.pos + 1})") from None
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        if not isinstance(record, dict):
            raise ValueError("the line is JSON, but not an object with fields")
        pair = Pair(_field(record, self.fields[0]), _field(record, self.fields[1]))
        if "\\u" in text and _SURROGATE.search(" ".join(pair)):
            raise ValueError(r"an escape from \ud800 to \udfff is unpaired, which is half of a character")
        return pair


def _field(record: dict[str, Any], name: str) -> str:
    value: Any = record
    for key in [name] if name in record else name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        raise NoPairError(f"the field '{name}' is missing or null (the fields are: {', '.join(record) or 'none'})")
    if not isinstance(value, str):
        raise ValueError(f"the field '{name}' contains {type(value).__name__} instead of text")
    return value
